"""GGUF files of Llama models come out as their checkpoints; what is wrong with one is said in one line."""

import json
import random
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from mtp_weights.errors import UserError
from mtp_weights.gguf import GgufFile
from tests import gguf_files, tiny
from tests.gguf_files import F16, F32, Q4_0, Q8_0
from tests.tiny_bpe import MERGES, TOKENS, VOCAB_SIZE

LLAMA = tiny.target_config("llama", vocab_size=VOCAB_SIZE)


def weights(config: tiny.Config) -> dict[str, mx.array]:
    return tiny.random_weights(tiny.build_target(config))


def written(folder: Path, config: tiny.Config = LLAMA, kind_of=lambda name, array: F32, **changes) -> Path:
    metadata, tensors = gguf_files.of_target(config, weights(config))
    kept = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    return gguf_files.write(folder / "model.gguf", kept, tensors, kind_of)


def assert_equal(given: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert given.keys() == expected.keys()
    for name, array in expected.items():
        assert mx.array_equal(given[name].astype(mx.float32), array).item(), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["llama", "llama-scaled"])
def test_tensors_and_configuration(name, tied, tmp_path):
    config = tiny.target_config(name, vocab_size=VOCAB_SIZE, tie_word_embeddings=tied, rope_scaling=None)
    gguf = GgufFile(written(tmp_path, config))
    assert_equal(gguf.weights(), weights(config))
    expected = {"attention_bias": False, "mlp_bias": False, "head_dim": 16, **config}
    expected |= {"bos_token_id": 1, "eos_token_id": 2}
    assert {key: gguf.config[key] for key in expected} == expected


def test_mixed_quantization(tmp_path):
    kinds = {"attn_v": Q8_0, "ffn_down": Q8_0, "token_embd": F16, "output": Q8_0}

    def kind_of(name: str, array: np.ndarray) -> int:
        part = name.split(".")[-2]
        return F32 if array.ndim == 1 else kinds.get(part, Q4_0)

    given = GgufFile(written(tmp_path, kind_of=kind_of)).weights()
    _, tensors = gguf_files.of_target(LLAMA, weights(LLAMA))
    for ours, theirs in (("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v")):
        stored = tensors[f"blk.1.{theirs}.weight"]
        expected = gguf_files.rounded(stored, kind_of(f"blk.1.{theirs}.weight", stored))
        assert np.array_equal(np.array(given[f"model.layers.1.{ours}.weight"]), expected), ours
    table = gguf_files.rounded(tensors["token_embd.weight"], F16)
    assert np.array_equal(np.array(given["model.embed_tokens.weight"].astype(mx.float32)), table)


def test_factors_of_llama_3_become_its_parameters(tmp_path):
    theta, head_dim, factor = 500_000.0, 64, 32.0
    wavelengths = [2 * np.pi * theta ** (i / head_dim) for i in range(0, head_dim, 2)]
    factors = []
    for wavelength in wavelengths:  # as llama.cpp's converter computes them
        smooth = (8192 / wavelength - 1) / (4 - 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1.0 if wavelength < 8192 / 4 else factor if wavelength > 8192 else between)
    config = tiny.target_config("llama", vocab_size=VOCAB_SIZE, head_dim=head_dim, rope_theta=theta)
    metadata, tensors = gguf_files.of_target(config, weights(config))
    tensors["rope_freqs.weight"] = np.array(factors, np.float32)
    gguf = GgufFile(gguf_files.write(tmp_path / "a.gguf", metadata, tensors))
    assert gguf.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert gguf.weights().keys() == weights(config).keys()
    tensors["rope_freqs.weight"][3] *= 1.1
    with pytest.raises(UserError, match="scales positions otherwise than Llama 3 does"):
        _ = GgufFile(gguf_files.write(tmp_path / "b.gguf", metadata, tensors)).config


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaled_positions(kind, tmp_path):
    scaling = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0}
    scaling["llama.rope.scaling.original_context_length"] = 1024
    found = GgufFile(written(tmp_path, **scaling)).config["rope_scaling"]
    assert found == {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 1024}


class TestTokenizer:
    def tokenizer(self, folder: Path, **changes) -> Tokenizer:
        return Tokenizer.from_str(GgufFile(written(folder, **changes)).files()["tokenizer.json"].decode())

    def test_merges_bytes_and_digits(self, tmp_path):
        tokenizer = self.tokenizer(tmp_path)
        assert tokenizer.encode("the ball").tokens == ["the", "Ġb", "a", "ll"]
        assert tokenizer.encode("12 Ä").tokens == ["1", "2", "Ġ", "Ã", "Ħ"]  # no merge reaches over two digits

    @pytest.mark.parametrize(("pre", "tokens"), [("gpt-2", ["12"]), ("llama-bpe", ["12"]), ("smollm", ["1", "2"])])
    def test_pre_tokenizers(self, pre, tokens, tmp_path):
        assert self.tokenizer(tmp_path, **{"tokenizer.ggml.pre": pre}).encode("12").tokens == tokens

    def test_every_text_comes_back(self, tmp_path):
        text = "the <|im_start|>user\n\tother — größer, 日本 123\r\n<tool> x<|im_end|>"
        tokenizer = self.tokenizer(tmp_path)
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert {1, 2, len(TOKENS) - 1} <= set(ids)
        assert "<tool>" in tokenizer.decode(ids) and "im_start" not in tokenizer.decode(ids)

    def test_the_first_token(self, tmp_path):
        assert self.tokenizer(tmp_path).encode("the").ids == [TOKENS.index("the")]
        first = self.tokenizer(tmp_path, **{"tokenizer.ggml.add_bos_token": True})
        assert first.encode("the").ids == [1, TOKENS.index("the")]
        assert first.encode("the", add_special_tokens=False).ids == [TOKENS.index("the")]

    def test_other_files(self, tmp_path):
        files = GgufFile(written(tmp_path)).files()
        config, generation = (json.loads(files[f"{name}_config.json"]) for name in ("tokenizer", "generation"))
        assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
        assert config["chat_template"].startswith("{% for m in messages %}")
        assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


WRONG = [
    ({"general.architecture": "qwen2"}, "GGUF of this architecture cannot be read .*'qwen2'.; known are llama"),
    ({"general.architecture": None}, "GGUF of this architecture cannot be read .*None"),
    ({"llama.block_count": None}, "llama.block_count must be a positive whole number"),
    ({"llama.attention.head_count": [4, 4]}, "llama.attention.head_count must be a positive whole number"),
    ({"llama.rope.freq_base": "much"}, "llama.rope.freq_base must be a positive number .given: much"),
    ({"llama.expert_count": 8}, "a mixture of experts in GGUF is not supported .given: 8 experts"),
    ({"llama.rope.dimension_count": 8}, "all 16 dimensions of a head must rotate .given: 8"),
    ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "scaling of positions.*longrope"),
    ({"tokenizer.ggml.model": "llama"}, "only byte-level BPE tokenizers can be taken from GGUF .*'llama'"),
    ({"tokenizer.ggml.pre": "other"}, "pre-tokenizer is not known .given: 'other'.; known are gpt-2, smollm"),
    ({"tokenizer.ggml.merges": None}, "the GGUF file's tokenizer lacks its tokens or merges"),
    ({"tokenizer.ggml.merges": [*MERGES, "q z"]}, "a merge .* is not made of its tokens .given: q z"),
    ({"tokenizer.ggml.tokens": TOKENS + ["more"]}, "more tokens than the model .given: 385 tokens, 384 embeddings"),
    ({"tokenizer.ggml.tokens": TOKENS[:-1] + ["the"]}, "has a token twice"),
    ({"tokenizer.ggml.eos_token_id": 999}, "has 384 tokens .given: a special one with the id 999"),
    ({"general.alignment": 0}, "its alignment is no positive number"),
]


def read_all(path: Path) -> None:
    gguf = GgufFile(path)
    gguf.files()
    mx.eval(gguf.weights())


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_is_wrong_is_said_in_one_line(changes, message, tmp_path):
    path = written(tmp_path, **changes)
    with pytest.raises(UserError, match=message) as error:
        read_all(path)
    assert "\n" not in str(error.value)


def test_tensors_that_do_not_belong(tmp_path):
    metadata, tensors = gguf_files.of_target(LLAMA, weights(LLAMA))
    extra = {**tensors, "blk.0.attn_q_norm.weight": np.ones(16, np.float32)}
    with pytest.raises(UserError, match="a tensor that no Llama model has .given: blk.0.attn_q_norm.weight"):
        read_all(gguf_files.write(tmp_path / "extra.gguf", metadata, extra))
    unreadable = {**tensors, "output.weight": tensors["output.weight"]}
    path = gguf_files.write(tmp_path / "kind.gguf", metadata, unreadable)
    name = b"output.weight"
    data = bytearray(path.read_bytes())
    kind = data.index(name) + len(name) + 4 + 2 * 8
    data[kind : kind + 4] = (12).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UserError, match="a type that MLX does not read .*output.weight has ggml's type 12.*Q8_0"):
        read_all(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the GGUF file is empty"),
        (b"PK\3\4 something else", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer instead of the weights"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), "this version of GGUF is not known .*9"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16, "the GGUF file is damaged .*things"),
    ],
)
def test_what_is_no_model(content, message, tmp_path):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_all(tmp_path / "a.gguf")


def test_no_file(tmp_path):
    with pytest.raises(UserError, match="cannot read the GGUF file .*No such file"):
        GgufFile(tmp_path / "a.gguf")


def test_cut_off_anywhere(tmp_path):
    """Never a crash of MLX's reader, which trusts what it maps."""
    content = written(tmp_path).read_bytes()
    rng = random.Random(0)
    for length in [*rng.sample(range(1, 9000), 40), *rng.sample(range(9000, len(content)), 40)]:
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(UserError, match="not a GGUF file|the GGUF file is damaged") as error:
            read_all(tmp_path / "cut.gguf")
        assert "\n" not in str(error.value)
