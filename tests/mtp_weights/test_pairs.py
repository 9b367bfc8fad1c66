"""Which drafter belongs to which target."""

import pytest

from mtp_weights.errors import UserError
from mtp_weights.locate import bundled_folder
from mtp_weights.pairs import PAIRS, choose_drafter, known_drafter, official_config, pair_of, repository_of


def drafter_for(name: str, hidden_size: int) -> str:
    return choose_drafter(name, "gemma4_text", hidden_size).name


@pytest.mark.parametrize(
    ("hidden_size", "size"), [(1536, "E2B"), (2560, "E4B"), (3840, "12B"), (2816, "26B-A4B"), (5376, "31B")]
)
def test_official_targets_and_their_conversions(hidden_size, size):
    drafter = f"google/gemma-4-{size}-it-assistant"
    assert pair_of("gemma4", hidden_size).drafter == drafter
    for name in (f"google/gemma-4-{size}-it", f"mlx-community/gemma-4-{size.lower()}-it-4bit", "me/my-fine-tune"):
        assert drafter_for(name, hidden_size) == drafter


@pytest.mark.parametrize(
    "name",
    [
        "google/gemma-4-E4B-it-qat-q4_0-unquantized",
        "mlx-community/gemma-4-e4b-it-qat-4bit",
        "/cache/models--mlx-community--gemma-4-E4B-it-qat-4bit/snapshots/0123",
    ],
)
def test_qat_targets_have_drafters_of_their_own(name):
    assert drafter_for(name, 2560) == "google/gemma-4-E4B-it-qat-q4_0-unquantized-assistant"


@pytest.mark.parametrize("name", ["qat/gemma-4-E4B-it", "me/gemma-4-E4B-it-qatar", "gemma-4/my-qat"])
def test_other_names_with_these_letters_are_not_qat(name):
    assert drafter_for(name, 2560) == "google/gemma-4-E4B-it-assistant"


def test_the_demo_target_by_name_and_by_folder():
    assert drafter_for("demo", 256) == "demo-drafter"
    assert drafter_for(str(bundled_folder("demo")), 256) == "demo-drafter"


def test_unknown_backbones():
    assert pair_of("gemma4", 2048) is None
    assert known_drafter("me/other", "gemma4", 2048) is None
    with pytest.raises(UserError, match=r"no drafter is known .*2048 \(given: me/other\)"):
        drafter_for("me/other", 2048)


@pytest.mark.parametrize("hidden_size", [256, 2560])
def test_another_family_of_the_same_hidden_size(hidden_size):
    assert pair_of("llama", hidden_size) is None
    with pytest.raises(UserError, match=rf"no drafter is known for a llama target of hidden size {hidden_size}"):
        choose_drafter("me/other", "llama", hidden_size)


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("e2b", "google/gemma-4-E2B-it"),
        ("E4B-4bit", "mlx-community/gemma-4-e4b-it-4bit"),
        ("26b", "google/gemma-4-26B-A4B-it"),
        ("26b-8bit", "mlx-community/gemma-4-26b-a4b-it-8bit"),
        ("26b-a4b-mxfp4", "mlx-community/gemma-4-26b-a4b-it-mxfp4"),
        ("31b-qat", "google/gemma-4-31B-it-qat-q4_0-unquantized"),
        ("12b-assistant", "google/gemma-4-12B-it-assistant"),
    ],
)
def test_short_names(name, repository):
    assert repository_of(name) == repository


@pytest.mark.parametrize("name", ["", "e3b", "e2b-7bit", "e2b/x", "26", "gemma"])
def test_what_is_no_short_name(name):
    assert repository_of(name) is None


def test_a_short_name_says_qat_too():
    choice = choose_drafter("e4b-qat-4bit", "gemma4_text", 2560)
    assert choice.name == "google/gemma-4-E4B-it-qat-q4_0-unquantized-assistant"
    assert choice.reason == "a target of hidden size 2560 is a Gemma 4 E4B, and its name says QAT"


@pytest.mark.parametrize("pair", PAIRS)
def test_every_size_has_its_configurations(pair):
    target, drafter = official_config(pair.config), official_config(f"{pair.config}-assistant")
    assert target["hidden_size"] == drafter["backbone_hidden_size"] == pair.hidden_size
