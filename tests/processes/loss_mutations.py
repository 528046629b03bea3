"""Faults of policy losses, aggregations, KL estimators and rollout correction: by case, module and description, as ``mutations``."""

LOSS = "algorithms.losses"

OF_LOSSES: dict[str, dict[str, dict[str, dict[str, str]]]] = {
    "loss gspo": {
        f"{LOSS}.gspo": {
            "GSPO averages over tokens under the mask": {
                "masked_mean(log_ratio.detach(), rows.response_mask, -1)": "log_ratio.detach().mean(-1)"
            },
            "GSPO clips above at twice the distance": {"1 + options.clip_ratio_high": "1 + 2 * options.clip_ratio_high"},
            "GSPO takes the better of the two": {"torch.maximum(plain, clipped)": "torch.minimum(plain, clipped)"},
        },
    },
    "loss sapo": {
        f"{LOSS}.sapo": {
            "SAPO forgets to divide by its temperature": {"* (4 / tau)": "* 4"},
            "the temperatures of SAPO change places": {"rows.advantages > 0, log_ratio": "rows.advantages < 0, log_ratio"},
        },
    },
    "loss gpg": {f"{LOSS}.gpg": {"GPG has the other sign": {"rows.weighted(-rows": "rows.weighted(rows"}}},
    "loss clip_cov": {
        f"{LOSS}.clip_cov": {
            "Clip-Cov trains the chosen tokens alone": {"torch.where(rows.selected, 0.0": "torch.where(~rows.selected, 0.0"},
            "Clip-Cov chooses below its band": {"options.clip_cov_lb < covariance": "options.clip_cov_lb > covariance"},
        },
        f"{LOSS}.covariance": {
            "the covariance is not centred": {"- part / max(tokens, 1) for": "for"},
        },
    },
    "loss kl_cov": {
        f"{LOSS}.kl_cov": {
            "KL-Cov chooses the smallest covariances": {"largest_tokens(covariance": "largest_tokens(-covariance"},
            "KL-Cov forgets the size of its term": {"options.ppo_kl_coef * distance": "distance"},
        },
        f"{LOSS}.covariance": {"the quota is one more": {"int(ratio * tokens))": "int(ratio * tokens) + 1)"}},
    },
    "loss geo_mean": {
        f"{LOSS}.geo_mean": {
            "GMPO is optimistic": {"torch.minimum(sign * log_ratio": "torch.maximum(sign * log_ratio"},
            "GMPO averages over tokens under the mask": {"masked_mean(pessimistic, mask, -1)": "pessimistic.mean(-1)"},
        },
    },
    "loss cispo": {
        f"{LOSS}.cispo": {
            "the weight of CISPO has a gradient": {"rows.log_ratio(LOG_RATIO_BOUND).detach()": "rows.log_ratio(LOG_RATIO_BOUND)"},
            "CISPO clips below at twice the distance": {"1 - options.clip_ratio_low": "1 - 2 * options.clip_ratio_low"},
        },
    },
    "loss dppo_tv": {
        f"{LOSS}.dppo_tv": {"DPPO by TV bounds a step down from above": {">= -options.clip_ratio_low": "<= -options.clip_ratio_low"}},
        f"{LOSS}.dppo": {
            "DPPO trains what it should drop": {"torch.where(keep, losses": "torch.where(~keep, losses"},
        },
    },
    "loss dppo_kl": {
        f"{LOSS}.dppo_kl": {
            "DPPO by KL drops steps back to the old policy": {"inside | torch.where(up, new <= old, new >= old)": "inside"},
        },
    },
    "loss dro": {f"{LOSS}.dro": {"DRO forgets its half": {"0.5 * options.dro_beta": "options.dro_beta"}}},
    "loss grpo": {
        f"{LOSS}.grpo": {
            "TRL's clip above is that below": {"1 + options.high)\n    capped": "1 + options.epsilon)\n    capped"},
            "TRL's clip takes the better of the two": {"-torch.minimum(capped": "-torch.maximum(capped"},
        },
    },
    "far dppo_tv": {f"{LOSS}.dppo": {"the weight of DPPO is not bounded": {"ratio.clamp(max=options.clip_ratio_c)": "ratio"}}},
    "far dppo_kl": {
        f"{LOSS}.dppo_kl": {"DPPO by KL takes the divergence the other way round": {"binary_kl(old, new)": "binary_kl(new, old)"}},
    },
    "far grpo": {
        f"{LOSS}.grpo": {
            "TRL's delta is forgotten": {"ratio if options.delta is None else ratio.clamp(max=options.delta)": "ratio"},
        },
    },
    "loss luspo": {f"{LOSS}.luspo": {"LUSPO takes a ratio a token": {'"sequence")': '"token")'}}},
    "loss vespo": {
        f"{LOSS}.vespo": {
            "the signs of VESPO change places": {"up = rows.advantages >= 0": "up = rows.advantages < 0"},
            "VESPO forgets lambda": {"scale * (1 - torch.exp": "(1 - torch.exp"},
        },
    },
    "aggregation seq-mean-token-sum": {
        "algorithms.aggregation": {
            "the mean over rows divides by tokens": {"masked_sum(losses, mask), of.sequences": "masked_sum(losses, mask), of.tokens"},
        },
        "training.sharded_model": {"B counts rows without a token": {"int(divided.any(-1).sum())": "len(divided)"}},
    },
    "aggregation seq-mean-token-sum-norm": {
        "algorithms.aggregation": {
            "the normalised sum forgets the mean over rows": {
                "_divided(_seq_mean_token_sum(losses, mask, of), of.scale)": "_divided(masked_sum(losses, mask), of.scale)"
            },
        },
    },
    "aggregation seq-mean-token-mean": {
        "algorithms.aggregation": {
            "the mean of a row is over its whole width": {"masked_count(losses, mask, -1).clamp(min=1)": "losses.shape[-1]"},
        },
    },
    "aggregation token-mean": {
        "training.sharded_model": {"T counts tokens under the mask": {"int(divided.sum())": "divided.numel()"}},
    },
    "kl k2": {"algorithms.kl": {"k2 forgets its half": {"0.5 * d * d": "d * d"}}},
    "kl abs": {"algorithms.kl": {"the absolute KL has a sign": {"return d.abs()": "return d"}}},
    "kl k1+": {
        "algorithms.kl": {
            "a name with + keeps its own gradient": {"straight_through(value, _k2(d))": "straight_through(value, value)"},
        },
    },
    "token weights": {
        "algorithms.rollout_correction.weights": {
            "weights are not truncated": {"masked(plain.clamp(bounds.lower, bounds.upper), mask)": "plain"},
            "weights are upside down": {"torch.exp(log_weight.clamp": "torch.exp(-log_weight.clamp"},
            "weights are normalised by their sum": {"return weight / count if": "return weight if"},
        },
        f"{LOSS}.policy_loss": {"weights are forgotten": {"losses * self.rollout_is_weights": "losses"}},
    },
    "row weights": {
        "algorithms.rollout_correction.weights": {
            "a row's weight is that of a token": {
                'if level == "sequence":\n        return masked(masked_sum': "if not level:\n        return masked(masked_sum"
            },
            "a weight outside its band is kept": {"(plain <= bounds.upper), plain, 0.0)": "(plain <= bounds.upper), plain, plain)"},
        },
    },
    "bypass": {
        f"{LOSS}.bypass_mode": {
            "REINFORCE has the other sign": {"rows.weighted(-rows.advantages": "rows.weighted(rows.advantages"},
            "engine and trainer change places": {
                "rows.log_probs.detach(),\n        rows.old_log_probs,": "rows.old_log_probs,\n        rows.log_probs.detach(),"
            },
        },
    },
    "rejection": {
        "algorithms.rollout_correction.rejection": {
            "k1 looks the other way": {"_values(-log_ratio.clamp": "_values(log_ratio.clamp"},
            "nothing is too small": {"(values >= criterion.lower) & (values <=": "(values <="},
            "what passes is rejected": {"kept = kept & passed": "kept = kept & ~passed"},
        },
    },
}
"""Loss, aggregation and KL by the name in the configuration; corrections as ``test_mutations`` names them."""
