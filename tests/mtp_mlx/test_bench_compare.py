"""Two results side by side: only what is more than noise is called a change."""

import copy
import json

import pytest

from mtp_mlx import MisuseError, UserError
from mtp_mlx.bench.compare import compare, read_reports


def prompt(n: int, plain: float = 100.0, mtp: float = 200.0) -> dict:
    speculation = {"mean_acceptance_length": 3.0}

    def run(tps: float) -> list[dict]:
        return [{"tokens": [n, n], "decode_tps": tps, "prefill_seconds": 0.5, "speculation": speculation}]

    return {
        "category": "chat",
        "prompt": str(n),
        "prompt_tokens": 5,
        "speed_up": mtp / plain,
        "runs": {"plain": run(plain), "mtp": run(mtp), "lenient": []},
    }


def result(speeds: list[float], depth: int = 3) -> dict:
    prompts = [prompt(n, mtp=speed) for n, speed in enumerate(speeds)]
    return {"model": "m", "num_draft_tokens": depth, "num_tokens": 8, "overall": {}, "prompts": prompts}


NOISY = [190.0, 205.0, 198.0, 210.0, 202.0, 195.0]


def test_the_same_result_twice_is_no_change():
    (found,) = compare([result(NOISY)], [result(NOISY)])
    assert found.prompts == 6 and found.other_outputs == 0 and found.other_conditions == []
    assert all(change.ratio == 1.0 and not change.is_more_than_noise for change in found.changes)


def test_what_moves_up_and_down_is_noise():
    (found,) = compare([result(NOISY)], [result(NOISY[::-1])])
    assert not any(change.is_more_than_noise for change in found.changes)


def test_what_moves_the_same_way_on_all_prompts_is_more_than_noise():
    (found,) = compare([result(NOISY)], [result([1.2 * speed for speed in NOISY])])
    changed = {change.name: change.ratio for change in found.changes if change.is_more_than_noise}
    assert changed == {"MTP, tok/s": pytest.approx(1.2), "speed-up": pytest.approx(1.2)}


def test_less_than_a_machine_drifts_is_noise():
    (found,) = compare([result(NOISY)], [result([1.02 * speed for speed in NOISY])])
    assert not any(change.is_more_than_noise for change in found.changes)


def test_sweeps_are_matched_by_depth():
    found = compare([result(NOISY, 1), result(NOISY, 2)], [result(NOISY, 2), result(NOISY, 4)])
    assert [each.num_draft_tokens for each in found] == [2]
    with pytest.raises(MisuseError, match="no depth and length in common"):
        compare([result(NOISY, 1), result(NOISY, 2)], [result(NOISY, 3)])


def test_other_conditions_and_outputs_are_named():
    after = copy.deepcopy(result(NOISY))
    after["model"] = "n"
    after["prompts"][2]["runs"]["plain"][0]["tokens"] = [7]
    (found,) = compare([result(NOISY)], [after])
    assert found.other_conditions == [("model", "m", "n")] and found.other_outputs == 1


def test_nothing_in_common():
    with pytest.raises(MisuseError, match="no prompts in common"):
        compare([result(NOISY)], [{**result(NOISY), "prompts": [{**prompt(0), "prompt": "other"}]}])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"reports": []}', '{"reports": [1]}'])
def test_what_is_no_result_is_refused(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(UserError, match="not a result of mtp bench"):
        read_reports(file)
    file.write_text(json.dumps(result(NOISY)))
    assert read_reports(file) == [result(NOISY)]
