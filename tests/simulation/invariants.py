"""What must hold at the end of every run, whatever went wrong on the way."""

from asyncrl.errors import AsyncRLError, CallFailed
from tests.simulation.journal import Journal, Operation
from tests.simulation.world import World

PROMISE = 0.1
"""Virtual seconds that an answer may come after its deadline, or after the news of a lost connection."""
NOTICE = 1.0
"""How long a lost connection may wait for the news of a directory."""


def check(world: World) -> list[str]:
    """Everything that is wrong in the history of a run whose operations have ended."""
    journal = world.journal
    found = list(journal.problems)
    for operation in journal.operations.values():
        found += [f"operation {operation.number} ({_name(operation)}): {problem}" for problem in _of_one(world, operation)]
    found += _order(world) + _stopped(world) + _collectives(journal)
    for number, node in journal.fenced:
        if any(effect.node == node for effect in journal.effects.get(number, ())):
            found.append(f"operation {number} ({_name(journal.operations[number])}) of a stale life took effect in {node}")
    return found


def _name(operation: Operation) -> str:
    where = f"{operation.kind} {operation.caller} > {operation.actor}@{operation.target}"
    return f"{where}, {operation.start:.6f} to {operation.end:.6f}, limit {operation.limit:.3f}: {operation.outcome} {operation.error!r}"


def _of_one(world: World, operation: Operation) -> list[str]:
    journal = world.journal
    promise = PROMISE if world.known is None else PROMISE + NOTICE
    found = effects_of(journal, operation) + promises_of(operation)
    if isinstance(operation.error, CallFailed) and operation.error.kind not in ("LookupError", "CancelledError", "TimeoutError"):
        found.append("its endpoint failed by itself")
    if operation.kind not in ("once", "group", "together", "inner"):
        # An idempotent call is sent again; a member of a group may have answered before.
        for told in journal.lost.get((operation.target, operation.caller), ()):
            if operation.start < told and operation.end > told + promise:
                found.append(f"it went on although its connection was lost at {told:.6f}")
    return found


def promises_of(operation: Operation) -> list[str]:
    """It ends, in time, with a result or an error of our own tree."""
    if operation.kind == "inner":
        return []
    found = [] if operation.outcome else ["it never ended"]
    if operation.kind not in ("steps", "items") and operation.end > operation.start + operation.limit + PROMISE:
        found.append(f"it ended {operation.end - operation.start - operation.limit:.3f} s after its deadline")
    if operation.error is not None and not isinstance(operation.error, AsyncRLError):
        found.append("its error is not of our own tree")
    return found


def effects_of(journal: Journal, operation: Operation) -> list[str]:
    """At most one effect; with a result exactly one, and it is the result's."""
    effects = journal.effects.get(operation.number, [])
    found = []
    if len(effects) > len({effect.node for effect in effects}) or (len(effects) > 1 and operation.kind != "once"):
        found.append(f"it took effect {len(effects)} times")
    process, _, life = operation.target.partition("#")
    for effect in effects:
        # A reference follows its process into later lives, never back.
        served, _, later = effect.node.partition("#")
        if (served, effect.actor) != (process, operation.actor) or int(later) < int(life):
            found.append(f"it took effect in {effect.actor}@{effect.node}")
    answered = operation.outcome == "result" and operation.kind not in ("tell", "inner")
    if answered and not effects:
        found.append("it has a result but took no effect")
    if answered and operation.kind != "items" and operation.result not in [effect.value for effect in effects]:
        found.append(f"its result is {operation.result}, not {[effect.value for effect in effects]}")
    return found


def _order(world: World) -> list[str]:
    """From one process to one actor nothing overtakes, as long as the connection lasts.

    Where calls wait for restarts, one that is made in the turn in which the news comes may overtake those that wait: there
    only what was over before the other began has its place.
    """
    journal, found = world.journal, []
    for (node, actor), entered in journal.entered.items():
        newest: dict[tuple[str, int], int] = {}
        for number in entered:
            operation = journal.operations[number]
            if operation.kind in ("once", "inner") or (operation.kind == "compute" and actor == "wide"):
                # Repeated after a loss; of another client; started in order on threads that overtake each other.
                continue
            pair = operation.caller, operation.epoch
            late = journal.operations.get(newest.get(pair, 0))
            if late is not None and number < late.number and (world.known is None or operation.end <= late.start):
                found.append(f"{actor}@{node} ran operation {number} of {operation.caller} after {late.number}")
            newest[pair] = max(newest.get(pair, 0), number)
    return found


def _stopped(world: World) -> list[str]:
    """What nobody waits for has stopped."""
    journal = world.journal
    dead = {life.node for life in world.lives if life.over}
    left = [number for number, node in journal.running if node not in dead]
    return [f"operation {number} ({_name(journal.operations[number])}) still runs" for number in left]


def _collectives(journal: Journal) -> list[str]:
    """All members of a group run its collectives in one order."""
    found = []
    orders = list(journal.collectives.items())
    for index, (name, order) in enumerate(orders):
        for other, others in orders[index + 1 :]:
            common = [place for place in order if place in others]
            if common != [place for place in others if place in order]:
                found.append(f"{name} and {other} ran their collectives in different orders")
    return found
