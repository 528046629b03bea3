"""Which function here answers to each recorded one: names of functions and options in, never names of cases."""

from tests.goldens.advantages import ADVANTAGES, ADVANTAGES_BY_PREFIX, TRL_ADVANTAGES
from tests.goldens.balancing import BALANCING
from tests.goldens.case import Adapter, Case
from tests.goldens.correction import CORRECTION
from tests.goldens.functional import FUNCTIONAL
from tests.goldens.kl import KL
from tests.goldens.losses import LOSSES, policy_loss
from tests.goldens.pipeline import PIPELINE
from tests.goldens.reported import REPORTED
from tests.goldens.trl import TRL, TRL_PREFIXES
from tests.goldens.validated import VALIDATED

ADAPTERS: dict[str, Adapter] = {
    **KL,
    **FUNCTIONAL,
    **LOSSES,
    **CORRECTION,
    **TRL,
    **ADVANTAGES,
    **TRL_ADVANTAGES,
    **PIPELINE,
    **BALANCING,
    **REPORTED,
    **VALIDATED,
}
PREFIXES: dict[str, Adapter] = {**ADVANTAGES_BY_PREFIX, **TRL_PREFIXES, "policy_loss.": policy_loss}


def adapter(case: Case) -> Adapter | None:
    """The adapter of a case, or None when nothing here answers to its function."""
    found = ADAPTERS.get(case.function)
    return found or next((value for prefix, value in PREFIXES.items() if case.function.startswith(prefix)), None)
