"""Advantage estimators, one a file, by the names of ``algorithm.adv_estimator``.

``estimator`` says what all of them take and give, ``votes`` who is heard where a session left several outputs.
"""

from asyncrl.algorithms.advantages.estimator import (
    AdvantageOptions,
    Estimator,
    Needs,
    OutcomeEstimator,
    OutcomeRows,
    TokenAdvantages,
    TokenEstimator,
    TokenRows,
    as_estimator,
)
from asyncrl.algorithms.advantages.gae import GAE
from asyncrl.algorithms.advantages.gdpo import GDPO
from asyncrl.algorithms.advantages.gpg import GPG
from asyncrl.algorithms.advantages.grpo import GRPO
from asyncrl.algorithms.advantages.grpo_passk import GRPO_PASSK
from asyncrl.algorithms.advantages.opo import OPO
from asyncrl.algorithms.advantages.optimal_token_baseline import OPTIMAL_TOKEN_BASELINE
from asyncrl.algorithms.advantages.reinforce_plus_plus import REINFORCE_PLUS_PLUS
from asyncrl.algorithms.advantages.reinforce_plus_plus_baseline import REINFORCE_PLUS_PLUS_BASELINE
from asyncrl.algorithms.advantages.remax import REMAX
from asyncrl.algorithms.advantages.rloo import RLOO, RLOO_VECTORIZED
from asyncrl.algorithms.advantages.tir_optimal_token_baseline import TIR_OPTIMAL_TOKEN_BASELINE
from asyncrl.algorithms.advantages.votes import multi_output, token_votes

ESTIMATORS: dict[str, Estimator] = {
    "gae": GAE,
    "grpo": GRPO,
    "grpo_vectorized": GRPO,
    "grpo_passk": GRPO_PASSK,
    "gdpo": GDPO,
    "rloo": RLOO,
    "rloo_vectorized": RLOO_VECTORIZED,
    "reinforce_plus_plus": REINFORCE_PLUS_PLUS,
    "reinforce_plus_plus_baseline": REINFORCE_PLUS_PLUS_BASELINE,
    "remax": REMAX,
    "opo": OPO,
    "gpg": GPG,
    "optimal_token_baseline": OPTIMAL_TOKEN_BASELINE,
    "tir_optimal_token_baseline": TIR_OPTIMAL_TOKEN_BASELINE,
}

__all__ = [
    "ESTIMATORS",
    "AdvantageOptions",
    "Estimator",
    "Needs",
    "OutcomeEstimator",
    "OutcomeRows",
    "TokenAdvantages",
    "TokenEstimator",
    "TokenRows",
    "as_estimator",
    "multi_output",
    "token_votes",
]
