"""A group that is urgent makes every request of its sessions urgent."""

from pathlib import Path

from tests.unit.workers.agent_room import agent_room, group
from tests.unit.workers.engine_room import SpyEngine
from tests.unit.workers.test_agent_worker import letters


async def test_every_request_of_an_urgent_group_is_urgent_and_no_other(tmp_path: Path) -> None:
    engine = SpyEngine(letters)
    async with agent_room(tmp_path, engine) as room:
        await room.issue(group("a", urgent=True), group("b"))
        await room.settled("a", "b")
    assert sorted((request.uid, request.urgent) for request in engine.asked) == [("a", True)] * 2 + [("b", False)] * 2
