"""`mtp convert`: what it writes, generate and mlx-lm read; acceptance is measured on request."""

import json

import mlx_lm
import pytest

from tests.mtp_cli.conftest import error_line, mtp


def test_convert_then_generate(pair, tmp_path):
    folder = str(tmp_path / "converted")
    result = mtp("convert", "--hf-path", pair.target, "--mlx-path", folder, "-q", "--q-bits", "8")
    assert (result.exit_code, result.stdout) == (0, f"{folder}\n"), result.stderr
    assert "bits a weight; the conversion took" in result.stderr
    text = mtp("generate", "-p", "hello", "--raw", "-m", "8", "--model", folder, "--draft-model", pair.drafter).stdout
    model, tokenizer = mlx_lm.load(folder)
    assert text.strip() and mlx_lm.generate(model, tokenizer, "hello", max_tokens=8)


def test_acceptance_before_and_after(pair, tmp_path):
    to_drafter = ["--hf-path", pair.drafter, "--mlx-path", str(tmp_path / "a"), "--measure", pair.target]
    report = json.loads(mtp("convert", "-q", *to_drafter, "--num-draft-tokens", "2", "--json").stdout)
    assert {when: figures["drafted"] > 0 for when, figures in report["acceptance"].items()} == {
        "before": True,
        "after": True,
    }
    to_target = ["--hf-path", pair.target, "--mlx-path", str(tmp_path / "b"), "--measure", pair.drafter]
    result = mtp("convert", "-q", *to_target)
    assert "before: " in result.stderr and "after: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "nothing to convert; give -q to quantize, --dequantize, or --dtype"),
        (["--q-bits", "4"], "these options say how to quantize; give -q, too"),
        (["-q", "--q-bits", "7"], "MLX does not have this affine quantization of the checkpoint (given: 7 bits, "),
        (["-q", "--quant-predicate", "x"], "no such recipe (given: x)"),
    ],
)
def test_misuse(arguments, line):
    assert error_line(mtp("convert", "--hf-path", "demo", *arguments), 2).startswith(line)


def test_the_drafter_of_a_target(tmp_path):
    result = mtp("convert", "--hf-path", "demo", "--drafter", "--mlx-path", str(tmp_path / "drafter"), "-q")
    assert result.exit_code == 0, result.stderr
    assert "drafter: demo-drafter, because" in result.stderr
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert (config["model_type"], config["quantization"]["bits"]) == ("gemma4_assistant", 4)


def test_a_drafter_is_measured_with_a_target_that_is_named(pair, tmp_path):
    arguments = ["convert", "--hf-path", pair.drafter, "--mlx-path", str(tmp_path / "a"), "-q", "--measure", "auto"]
    assert mtp(*arguments).exit_code == 2
