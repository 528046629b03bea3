"""Which options of ``actor_rollout_ref.actor`` the policy losses read, for checks that run before torch is imported.

Each loss declares the same beside its code, in ``asyncrl.algorithms.losses``; a test holds the two equal.
"""

READS = {
    "clip_ratio_low": ("vanilla", "dppo_tv", "dppo_kl", "gspo", "clip_cov", "geo_mean", "cispo", "bypass_mode"),
    "clip_ratio_high": ("vanilla", "dppo_tv", "dppo_kl", "gspo", "clip_cov", "geo_mean", "cispo", "bypass_mode"),
    "clip_ratio_c": ("vanilla", "dppo_tv", "dppo_kl", "bypass_mode"),
    "tau_pos": ("sapo",),
    "tau_neg": ("sapo",),
    "policy_loss.clip_cov_ratio": ("clip_cov",),
    "policy_loss.clip_cov_lb": ("clip_cov",),
    "policy_loss.clip_cov_ub": ("clip_cov",),
    "policy_loss.kl_cov_ratio": ("kl_cov",),
    "policy_loss.ppo_kl_coef": ("kl_cov",),
    "policy_loss.dro_beta": ("dro",),
    "policy_loss.epsilon": ("grpo", "luspo"),
    "policy_loss.epsilon_high": ("grpo", "luspo"),
    "policy_loss.delta": ("grpo", "luspo"),
    "policy_loss.importance_sampling_level": ("grpo",),
    "policy_loss.vespo_k_pos": ("vespo",),
    "policy_loss.vespo_lambda_pos": ("vespo",),
    "policy_loss.vespo_k_neg": ("vespo",),
    "policy_loss.vespo_lambda_neg": ("vespo",),
}
"""Options and the losses that look at them."""
AGGREGATES = {"sapo": "seq-mean-token-mean", "geo_mean": "seq-mean-token-mean", "luspo": "seq-mean-token-sum"}
"""Losses that are defined with an aggregation of their own."""
BYPASS_LOSS = "bypass_mode"
"""The loss that corrects from the engine's log-probs by itself."""
