"""Each finding of the doctor, with the machine as a test would have it."""

import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HTTPError

import mtp_weights
from mtp_mlx import doctor
from mtp_mlx.doctor import ERROR, OK, WARNING, Check, worst
from mtp_weights.openblas import Blas


def set_mac(monkeypatch, *, processor="arm64", release="15.1"):
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    monkeypatch.setattr(doctor.platform, "machine", lambda: processor)
    monkeypatch.setattr(doctor.platform, "mac_ver", lambda: (release, ("", "", ""), processor))


def test_the_gravest_finding_counts():
    checks = [Check("a", OK, ""), Check("b", WARNING, ""), Check("c", ERROR, "")]
    assert [worst(checks[:n]) for n in (1, 2, 3)] == [OK, WARNING, ERROR]


def test_macs(monkeypatch):
    set_mac(monkeypatch)
    assert doctor.system().state == OK and "macOS 15.1" in doctor.system().text
    set_mac(monkeypatch, release="13.6.1")
    assert doctor.system().state == ERROR and "macOS 14" in doctor.system().text
    set_mac(monkeypatch, processor="x86_64")
    assert "Rosetta" in doctor.system().fix


def test_old_and_missing_packages(monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda name: ["mlx-lm>=0.32.2", "rich>=14.0", 'ruff>=1; extra == "dev"'])
    assert doctor.packages().state == OK and "mlx-lm" in doctor.packages().text
    versions = {"mlx-lm": "0.20.0", "rich": None}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, "999"))
    found = doctor.packages()
    assert found.state == ERROR and "rich missing" in found.text
    assert found.fix == "pip install -U 'mlx-lm>=0.32.2' 'rich>=14.0'"


def test_not_installed(monkeypatch):
    def requires(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", requires)
    assert doctor.packages().state == WARNING


def test_device_and_blas(monkeypatch):
    assert doctor.device().state == OK
    monkeypatch.setattr(mtp_weights, "BLAS", Blas("reference"))
    assert (doctor.blas().state, doctor.blas().fix) == (WARNING, "import mtp_mlx first")
    missing = "libgfortran.so.5: cannot open shared object file"
    monkeypatch.setattr(mtp_weights, "BLAS", Blas("reference", missing, "apt install libgfortran5"))
    assert (missing in doctor.blas().text, doctor.blas().fix) == (True, "apt install libgfortran5")
    monkeypatch.setattr(mtp_weights, "BLAS", Blas("openblas"))
    assert doctor.blas() == Check("BLAS", OK, "openblas")


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert doctor.compiler().state == WARNING


def test_the_command_that_lets_a_model_have_more_of_a_macs_memory(monkeypatch):
    monkeypatch.setattr(doctor, "ON_CPU", False)
    monkeypatch.setattr(doctor, "physical_memory", lambda: 32 * 2**30)
    monkeypatch.setattr(doctor, "available", lambda: 21 * 2**30)
    assert doctor.memory().fix == "for a larger model: sudo sysctl iogpu.wired_limit_mb=27045 (until a restart)"
    monkeypatch.setattr(doctor, "available", lambda: 27 * 2**30)
    assert doctor.memory().fix is None


def test_the_wired_limit_that_is_set(monkeypatch):
    assert doctor.wired_limit() is None
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    for answer, limit in (("0\n", None), ("27000\n", 27000 * 2**20)):
        monkeypatch.setattr(doctor, "run", lambda *args, answer=answer, **options: SimpleNamespace(stdout=answer))
        assert doctor.wired_limit() == limit


def test_little_disk(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, 10**9))
    assert doctor.disk() == Check("disk", WARNING, "1.0 GB free where models are kept", doctor.disk().fix)


def test_the_cache_and_what_is_incomplete_in_it(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.constants, "HF_HUB_CACHE", str(tmp_path))
    assert doctor.cache().state == OK
    (tmp_path / "models--google--gemma-4-E2B-it" / "blobs").mkdir(parents=True)
    (tmp_path / "models--google--gemma-4-E2B-it" / "snapshots").mkdir()
    assert (doctor.cache().state, doctor.cache().fix) == (WARNING, "mtp pull google/gemma-4-E2B-it")
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert doctor.cache().state == ERROR


@pytest.mark.parametrize(("found", "text"), [(None, "none: public"), ("hf_x", "there is one")])
def test_token(monkeypatch, found, text):
    monkeypatch.setattr(doctor, "get_token", lambda: found)
    assert doctor.token().text.startswith(text) and "hf_x" not in doctor.token().text


def test_the_hub(monkeypatch):
    monkeypatch.setattr(doctor.constants, "HF_HUB_OFFLINE", True)
    assert "work offline" in doctor.hub().text
    monkeypatch.setattr(doctor.constants, "HF_HUB_OFFLINE", False)

    def unreachable(*args, **options):
        raise HTTPError("no route")

    for head, state in ((unreachable, WARNING), (lambda *args, **options: None, OK)):
        monkeypatch.setattr(doctor, "get_session", lambda head=head: SimpleNamespace(head=head))
        assert doctor.hub().state == state


def test_a_damaged_demo_pair(monkeypatch, tmp_path):
    assert doctor.demo().state == OK
    monkeypatch.setattr(doctor, "bundled_folder", lambda name: tmp_path)
    assert doctor.demo().state == ERROR
