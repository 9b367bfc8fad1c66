"""`mtp doctor`: lines or JSON, and an exit code for the gravest finding."""

import json

import pytest

from mtp_mlx import doctor
from mtp_mlx.doctor import ERROR, OK, WARNING, Check
from tests.mtp_cli.conftest import mtp


@pytest.mark.parametrize(("state", "code", "sign"), [(OK, 0, "✓"), (WARNING, 2, "!"), (ERROR, 1, "✗")])
def test_lines_and_exit_codes(monkeypatch, state, code, sign):
    checks = (lambda: Check("memory", OK, "32.0 GB"), lambda: Check("hub", state, "as it is", "mend it"))
    monkeypatch.setattr(doctor, "CHECKS", checks)
    result = mtp("doctor")
    assert result.exit_code == code
    assert result.stdout.splitlines() == ["✓ memory  32.0 GB", f"{sign} hub     as it is", "          → mend it"]
    report = mtp("doctor", "--json")
    assert report.exit_code == code
    assert json.loads(report.stdout)["checks"][1] == {
        "name": "hub",
        "state": state,
        "text": "as it is",
        "fix": "mend it",
    }


def test_this_machine(monkeypatch):
    monkeypatch.setattr(doctor.constants, "HF_HUB_OFFLINE", True)
    report = json.loads(mtp("doctor", "--json").stdout)
    names = [check["name"] for check in report["checks"]]
    wanted = [
        "machine",
        "packages",
        "device",
        "BLAS",
        "compiler",
        "memory",
        "disk",
        "cache",
        "token",
        "hub",
        "demo pair",
    ]
    assert names == wanted
    assert report.keys() == {"state", "checks"}
    assert {tuple(check) for check in report["checks"]} == {("name", "state", "text", "fix")}
