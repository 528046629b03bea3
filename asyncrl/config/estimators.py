"""What advantage estimators ask of the other options, by name, for checks that run before torch is imported.

Each estimator declares the same beside its code, in ``asyncrl.algorithms.advantages``; a test holds the two equal.
"""

COMPARING = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "gdpo",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
)
"""They compare the sessions of one prompt."""
VALUING = ("gae",)
"""They need a critic's values."""
GREEDY = ("remax",)
"""They need the score of one greedy session per prompt."""
SQUARING = ("optimal_token_baseline", "tir_optimal_token_baseline")
"""They need the squared probabilities that only a pass over the old policy gives."""
READS = {
    "gamma": ("gae", "reinforce_plus_plus"),
    "lam": ("gae",),
    "norm_adv_by_std_in_grpo": ("grpo", "grpo_vectorized", "grpo_passk", "gdpo"),
    "gdpo_reward_keys": ("gdpo",),
}
"""Options of ``algorithm`` and the estimators that look at them."""
