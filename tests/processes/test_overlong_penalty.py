"""The penalty for too long answers, through configuration, agents and rewards."""

from pathlib import Path

import pytest

from asyncrl.config.load import load_config
from asyncrl.errors import ConfigError
from tests.processes.off_policy import run

BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return {'score': 1.0, 'acc': 1.0}\n"


@pytest.mark.parametrize("limit", [None, 3])
async def test_an_answer_near_the_limit_loses_score_token_by_token(limit: int | None, tmp_path: Path) -> None:
    """Answers of the quickstart have up to four tokens."""
    (tmp_path / "reward.py").write_text(REWARD)
    options = (
        f"reward.custom_reward_function.path={tmp_path / 'reward.py'}",
        f"{BUFFER}.enable=true",
        f"{BUFFER}.len=2",
        f"{BUFFER}.penalty_factor=0.5",
        f"{BUFFER}.log=true",
        f"reward.reward_kwargs.max_resp_len={'null' if limit is None else limit}",
    )
    [record] = await run(tmp_path, [None], *options)
    lengths = {tag["response_len"] for tag in record["tags"].values()}
    assert len(lengths) > 1
    for key, tag in record["tags"].items():
        penalty = -0.25 * max(0, tag["response_len"] - ((limit or 4) - 2))
        fields = record["rollout"][key]
        assert tag["score"] == pytest.approx(1.0 + penalty)
        assert fields["rm_scores"][-1] == pytest.approx(1.0 + penalty)
        assert fields["reward_extra_info"] == {"acc": 1.0, "overlong_reward": penalty, "overlong": float(penalty < 0)}
    assert record["numbers"]["critic/acc/mean"] == 1.0


@pytest.mark.parametrize("length", [-3, 0, 99])
def test_any_length_will_do_while_it_is_off(length: int) -> None:
    assert load_config(["config=quickstart", f"{BUFFER}.len={length}"]).notices == []


@pytest.mark.parametrize(("length", "part"), [(0, "at least 1"), (5, "max_resp_len = 4")])
def test_a_length_that_makes_no_sense_is_refused_when_it_is_on(length: int, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        load_config(["config=quickstart", f"{BUFFER}.enable=true", f"{BUFFER}.len={length}"])
    assert caught.value.key == f"{BUFFER}.len"
