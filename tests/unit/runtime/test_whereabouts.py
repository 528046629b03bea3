"""What is known of processes: news in any order, waiting for a later life, and watching."""

import asyncio
import random

import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.runtime import ActorAddress, Liveness
from asyncrl.runtime.whereabouts import KnownProcesses, State, Whereabouts, up


def life(process: str, generation: int) -> Whereabouts:
    return up(ActorAddress(process, f"ipc:///{process}-{generation}", "a", "", generation))


def news(process: str, generation: int, state: State) -> Whereabouts:
    return life(process, generation) if state == "up" else Whereabouts(process, generation, state, None, "why")


STATES: list[State] = ["up", "restarting", "dead"]
NEWS = st.builds(news, st.sampled_from(["p", "q"]), st.integers(0, 3), st.sampled_from(STATES))


@settings(max_examples=60)
@given(st.lists(NEWS, min_size=1, max_size=12), st.integers(0, 1000))
def test_news_may_come_twice_and_in_any_order(told: list[Whereabouts], seed: int) -> None:
    expected = {each.process: max((one for one in told if one.process == each.process), key=lambda one: one.rank) for each in told}
    shuffled = told + told[: len(told) // 2]
    random.Random(seed).shuffle(shuffled)
    known = KnownProcesses()
    for each in shuffled:
        known.learn(each)
    seen = {each.process: each for each in known.all()}
    assert {name: each.rank for name, each in seen.items()} == {name: each.rank for name, each in expected.items()}
    for name, each in seen.items():
        assert each.oldest_admitted == each.generation + (expected[name].state != "up")
        assert known.learn(each) is False


def test_a_process_keeps_the_address_of_its_actor_while_it_is_down() -> None:
    known = KnownProcesses()
    known.learn(life("p", 0))
    known.learn(news("p", 0, "restarting"))
    assert known.addresses("a") == [life("p", 0).address]
    known.learn(news("p", 0, "dead"))
    assert known.addresses("a") == []
    assert known.addresses("b") == []


async def test_a_later_life_is_waited_for_and_a_final_death_ends_the_wait() -> None:
    known = KnownProcesses()
    known.learn(life("p", 0))
    known.learn(life("q", 5))
    later, gone = asyncio.ensure_future(known.after("p", 0)), asyncio.ensure_future(known.after("q", 5))
    for each in (news("p", 0, "restarting"), news("p", 1, "restarting"), news("q", 5, "restarting")):
        known.learn(each)
        await asyncio.sleep(0)
        assert not later.done()
        assert not gone.done()
    known.learn(life("p", 2))
    known.learn(news("q", 6, "dead"))
    assert await later == life("p", 2)
    assert (await gone).state == "dead"
    assert await known.after("p", 1) == life("p", 2)


async def test_a_slow_watcher_gets_the_latest_word_on_each_process() -> None:
    known = KnownProcesses()
    changes = known.changes()
    for generation in range(100):
        known.learn(life("p", generation))
    known.learn(life("q", 0))
    assert await changes.next() == [life("p", 99), life("q", 0)]
    waiting = asyncio.ensure_future(changes.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    known.learn(news("q", 0, "dead"))
    assert [each.state for each in await waiting] == ["dead"]
    changes.close()


@pytest.mark.parametrize(("heartbeat", "dead_after", "stalled_after"), [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 2.0, 0.0)])
def test_a_liveness_that_makes_no_sense_is_refused(heartbeat: float, dead_after: float, stalled_after: float) -> None:
    with pytest.raises(ValueError, match="must be above"):
        Liveness(heartbeat, dead_after, stalled_after)
