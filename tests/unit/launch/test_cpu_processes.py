"""The processes of a run as they are asked for; none is started."""

import inspect
from pathlib import Path
from typing import Any, cast

from asyncrl.config.load import load_config
from asyncrl.launch.cluster import A, shard_options, start_cpu_processes
from asyncrl.runtime import ActorRef
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.engine_process import EngineProcess


class Noted:
    """Keeps with what each agent worker would be made."""

    def __init__(self) -> None:
        self.agents: list[dict[str, Any]] = []

    async def spawn(self, cls: type[A], *args: Any, name: str, process: str, restarts: int = 0, **kwargs: Any) -> ActorRef[A]:
        if issubclass(cls, AgentWorker):
            self.agents.append(inspect.signature(cls).bind(*args, **kwargs).arguments)
        return cast(ActorRef[A], None)


async def test_sessions_wait_for_an_engine_longer_than_its_next_life_may_take_to_be_ready(tmp_path: Path) -> None:
    config = load_config(["config=quickstart"]).config
    noted = Noted()
    await start_cpu_processes(noted, config, shard_options(config, tmp_path, None))
    assert len(noted.agents) == config.actor_rollout_ref.rollout.agent.num_workers > 0
    assert all(agent["engine_patience"] > EngineProcess.ready_within for agent in noted.agents)
