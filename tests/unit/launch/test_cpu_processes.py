"""The processes of a run as they are asked for; none is started."""

import inspect
from pathlib import Path
from typing import Any, cast

import pytest

from asyncrl.config.load import load_config
from asyncrl.launch.cluster import A, shard_options, start_cpu_processes
from asyncrl.runtime import ActorRef
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.engine_process import EngineProcess
from asyncrl.workers.reward import RewardWorker


class Noted:
    """Keeps with what each agent worker and each reward worker would be made."""

    def __init__(self) -> None:
        self.agents: list[dict[str, Any]] = []
        self.judges: list[dict[str, Any]] = []

    async def spawn(self, cls: type[A], *args: Any, name: str, process: str, restarts: int = 0, **kwargs: Any) -> ActorRef[A]:
        if issubclass(cls, AgentWorker):
            self.agents.append(inspect.signature(cls).bind(*args, **kwargs).arguments)
        if issubclass(cls, RewardWorker):
            self.judges.append(inspect.signature(cls).bind(*args, **kwargs).arguments)
        return cast(ActorRef[A], None)


async def test_sessions_wait_for_an_engine_longer_than_its_next_life_may_take_to_be_ready(tmp_path: Path) -> None:
    config = load_config(["config=quickstart"]).config
    noted = Noted()
    await start_cpu_processes(noted, config, shard_options(config, tmp_path, None))
    assert len(noted.agents) == config.actor_rollout_ref.rollout.agent.num_workers > 0
    assert all(agent["engine_patience"] > EngineProcess.ready_within for agent in noted.agents)


@pytest.mark.parametrize(("seconds", "silence"), [(300.0, 600.0), (0.5, 2.0), (50.0, 5.0)])
async def test_a_reward_worker_that_stands_still_is_ended_before_an_agent_gives_it_up(
    seconds: float, silence: float, tmp_path: Path
) -> None:
    config = load_config(["config=quickstart", f"reward.timeout={seconds}", f"runtime.silence={silence}"]).config
    noted = Noted()
    await start_cpu_processes(noted, config, shard_options(config, tmp_path, None))
    [judge] = {(judge["seconds"], judge["margin"]) for judge in noted.judges}
    assert judge[0] == seconds
    assert all(agent["silence"] > sum(judge) and agent["silence"] >= silence for agent in noted.agents)


async def test_inline_no_reward_ends_the_process(tmp_path: Path) -> None:
    config = load_config(["config=quickstart", "debug=inline"]).config
    noted = Noted()
    await start_cpu_processes(noted, config, shard_options(config, tmp_path, None))
    assert [judge["margin"] for judge in noted.judges] == [None]
