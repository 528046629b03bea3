"""The faults that a comparison with the dense step must see: by case, module and description, what stands there and what is put there."""

from collections.abc import Mapping

from tests.processes.loss_mutations import OF_LOSSES
from tests.processes.mutants import Mutation

OF_POLICY: dict[str, dict[str, dict[str, str]]] = {
    "algorithms.losses.vanilla": {
        "the upper clip is twice as wide": {"1 + options.clip_ratio_high": "1 + 2 * options.clip_ratio_high"},
        "the lower clip is twice as wide": {"1 - options.clip_ratio_low": "1 - 2 * options.clip_ratio_low"},
        "the clips change places": {
            "1 - options.clip_ratio_low": "1 - options.clip_ratio_high",
            "1 + options.clip_ratio_high": "1 + options.clip_ratio_low",
        },
        "the dual clip is twice as high": {", options.clip_ratio_c\n": ", 2 * options.clip_ratio_c\n"},
        "there is no dual clip": {"free.clamp(floor, ceiling)": "free.clamp(min=floor)"},
        "the dual clip acts where the advantage is positive": {
            "ratio.detach(), rows.advantages < 0": "ratio.detach(), rows.advantages > 0"
        },
        "the ratio is upside down": {"torch.exp(log_ratio)": "torch.exp(-log_ratio)"},
        "the advantage has the other sign": {"rows.weighted(-rows.advantages": "rows.weighted(rows.advantages"},
        "the KL of the policies is reported with the other sign": {"ppo_kl=-log_ratio": "ppo_kl=log_ratio"},
        "the fraction of clipped ratios counts those that are not": {"pg_clipfrac=beyond": "pg_clipfrac=~beyond"},
    },
    "algorithms.losses.policy_loss": {
        "what is clipped keeps its gradient": {
            "torch.where(values.detach() == bounded, values, bounded)": "bounded + values - values.detach()"
        },
    },
    "algorithms.objective": {
        "the entropy has the other sign": {"loss = loss - config.entropy_coeff": "loss = loss + config.entropy_coeff"},
        "the entropy counts tokens under the mask": {"aggregate(entropy, mask": "aggregate(entropy, torch.ones_like(mask)"},
        "the KL term has the other sign": {"loss = loss + config.kl_loss_coef": "loss = loss - config.kl_loss_coef"},
        "the KL term has no gradient": {"kl_penalty(rows.clean(rows.log_probs)": "kl_penalty(rows.clean(rows.log_probs.detach())"},
        "the KL term counts tokens under the mask": {
            "rows.clean(rows.log_probs), rows.clean(ref_log_prob)": "rows.log_probs, ref_log_prob",
            "aggregate(kl, mask": "aggregate(kl, torch.ones_like(mask)",
        },
    },
    "algorithms.kl": {
        "policy and reference change places": {"d = log_probs - ref_log_prob": "d = ref_log_prob - log_probs"},
        "k3 lacks its control variate": {"torch.exp(-bounded) + bounded - 1.0": "torch.exp(-bounded) - 1.0"},
    },
    "algorithms.aggregation": {
        "tokens under the mask are aggregated": {"_divided(masked_sum(losses, mask), of.tokens)": "_divided(losses.sum(), of.tokens)"},
        "the mean over tokens divides by rows": {"masked_sum(losses, mask), of.tokens": "masked_sum(losses, mask), of.sequences"},
    },
    "algorithms.advantages.grouping": {
        "the sample deviation divides by n": {
            "self.total(self.centred(values).square()) / (self.counts - 1)": "self.total(self.centred(values).square()) / self.counts"
        },
    },
    "algorithms.advantages.grpo": {
        "the epsilon of the deviation is left out": {" + options.epsilon": ""},
        "the epsilon of the deviation is ten times as large": {"+ options.epsilon": "+ 10 * options.epsilon"},
    },
    "algorithms.advantages.votes": {
        "every output votes": {'if votes == "all":': "if votes:"},
        "the first output votes": {"indices == session.largest(indices)": "indices == session.smallest(indices)"},
    },
    "algorithms.logprobs": {
        "the temperature multiplies": {".to(width) / temperature": ".to(width) * temperature"},
        "the gradient of a log-prob forgets the temperature": {
            "(grad[rows] / ctx.temperature).unsqueeze(-1)\n            wide": "grad[rows].unsqueeze(-1)\n            wide"
        },
        "the gradient of the entropy has the other sign": {
            "p * entropy[rows].unsqueeze(-1)) * slope": "p * entropy[rows].unsqueeze(-1)) * -slope"
        },
    },
}
"""Under GRPO with clips, KL and entropy."""

OF_CRITIC: dict[str, dict[str, dict[str, str]]] = {
    "algorithms.advantages.gae": {
        "GAE does not discount the next value": {"options.gamma * following": "following"},
        "the decay of GAE forgets gamma": {"options.gamma * options.lam": "options.lam"},
        "the decay of GAE forgets lambda": {"options.gamma * options.lam": "options.gamma"},
        "GAE takes the value of a tool's token": {"later(carried_back(values, rows.mask))": "later(values)"},
        "GAE adds the value that it should take off": {"following - values": "following + values"},
        "the returns of GAE are its advantages": {"advantages + values, moments": "advantages, moments"},
        "GAE is whitened over tokens under the mask": {"moments(advantages, rows.mask)": "moments(advantages, rows.mask * 0 + 1)"},
    },
    "algorithms.masked": {
        "whitening divides by n": {"(total - 1).clamp(min=1)": "total"},
        "whitening keeps the mean": {"(masked(values, mask).double() - mean) * scale": "masked(values, mask).double() * scale"},
        "whitening takes the deviation for the variance": {"torch.rsqrt(deviations": "1 / (deviations"},
    },
    "algorithms.value_loss": {
        "the value loss is not clipped": {"now.clamp(before - cliprange_value, before + cliprange_value)": "now"},
        "the value clip is twice as wide": {"before + cliprange_value": "before + 2 * cliprange_value"},
        "the value loss takes the smaller error": {"torch.maximum(plain, clipped)": "torch.minimum(plain, clipped)"},
        "the value loss is not halved": {"0.5 * torch.maximum": "torch.maximum"},
        "the value loss counts tokens under the mask": {
            "(masked(each, response_mask) for each in (values, old_values, returns))": "(values, old_values, returns)",
            "clipped), response_mask, loss_agg_mode": "clipped), response_mask * 0 + 1, loss_agg_mode",
        },
    },
}
"""Under GAE with a critic."""

OF_PENALTY: dict[str, dict[str, dict[str, str]]] = {
    "algorithms.kl_in_reward": {
        "KL in the reward has the other sign": {"return masked(kl, response_mask)": "return -masked(kl, response_mask)"},
        "KL in the reward counts tokens under the mask": {
            "masked(old_log_probs, response_mask), masked(ref_log_prob, response_mask)": "old_log_probs, ref_log_prob",
            "return masked(kl, response_mask)": "return kl",
            "masked_sum(kl, response_mask, -1), masked_mean": "kl.sum(-1), masked_mean",
        },
    },
}
"""With a KL in the reward."""

OF_ESTIMATORS: dict[str, dict[str, dict[str, dict[str, str]]]] = {
    "rloo": {
        "algorithms.advantages.rloo": {
            "RLOO counts the one among the others": {"(group.counts - 1).clamp(min=1)": "group.counts"},
            "RLOO leaves two out": {"(group.counts - 1)": "(group.counts - 2)"},
        },
    },
    "without std": {
        "algorithms.advantages.grouping": {
            "the mean of a group is over one answer less": {
                "self.total(values) / self.counts\n": "self.total(values) / (self.counts - 1).clamp(min=1)\n"
            },
        },
        "algorithms.advantages.grpo": {
            "the deviation is always divided by": {"if not options.normalise_by_std": "if options.normalise_by_std is None"},
        },
    },
    "opo": {"algorithms.advantages.opo": {"OPO forgets the lengths": {"weights=rows.lengths": "weights=rows.lengths * 0 + 1"}}},
    "gpg": {
        "algorithms.advantages.gpg": {
            "GPG forgets its factor": {"(len(rows.scores) / earned)": "1.0"},
            "GPG counts the scores that are 0": {"count_nonzero(rows.scores)": "count_nonzero(rows.scores == 0)"},
        },
    },
    "passk": {
        "algorithms.advantages.grpo_passk": {
            "the best is compared with the worst": {
                "group.largest(torch.where(number == best[group.index], -torch.inf, scores))": "group.smallest(scores)"
            },
        },
    },
    "gdpo": {"algorithms.advantages.gdpo": {"GDPO forgets its weights": {"[weight * standardised": "[standardised"}}},
    "whitened": {
        "algorithms.advantages.estimator": {
            "whitening counts rows and not tokens": {"moments(advantages, lengths)": "moments(advantages, ones)"}
        },
    },
    "returns": {
        "algorithms.advantages.reinforce_plus_plus": {"returns are not discounted": {"rows.mask, options.gamma)": "rows.mask, 1.0)"}},
        "algorithms.advantages.scan": {
            "tools' tokens discount": {"torch.ones_like(like).masked_fill(mask.bool(), gamma)": "torch.full_like(like, gamma)"},
        },
    },
    "remax": {"algorithms.advantages.remax": {"ReMax adds its baseline": {"returns - given": "returns + given"}}},
    "columns": {
        "algorithms.advantages.optimal_token_baseline": {
            "the energy of a token forgets its own probability": {"1.0 - 2.0 * probs +": "1.0 +"},
            "the energy of a token forgets the others' probabilities": {
                '- 2.0 * probs + masked(given("sum_pi_squared", rows.sum_pi_squared), rows.mask)': "- 2.0 * probs"
            },
            "a lone answer has a baseline": {"alone | (reaching == 1) if options.handle_zero_tail else": ""},
        },
    },
    "tools": {
        "algorithms.advantages.optimal_token_baseline": {
            "the weight of an answer is not summed up": {"masked(energy, rows.mask).cumsum(-1)": "masked(energy, rows.mask)"},
        },
        "algorithms.advantages.tir_optimal_token_baseline": {
            "tools' tokens are places": {"numbers.cumsum(-1) - 1": "(numbers * 0 + 1).cumsum(-1) - 1"},
        },
    },
}
"""Under the estimator's name."""

SOON = (
    "the upper clip is twice as wide",
    "the dual clip is twice as high",
    "the entropy has the other sign",
    "tokens under the mask are aggregated",
    "the sample deviation divides by n",
    "the decay of GAE forgets gamma",
    "the value loss is not clipped",
    "RLOO counts the one among the others",
)
"""The faults of the suite; the others are put in by ``make faults``."""


def faults() -> dict[str, tuple[str, Mutation]]:
    """Case and fault by description."""
    tables: Mapping[str, dict[str, dict[str, dict[str, str]]]] = {
        "policy": OF_POLICY,
        "critic": OF_CRITIC,
        "penalised": OF_PENALTY,
        **OF_ESTIMATORS,
        **OF_LOSSES,
    }
    return {
        name: (case, Mutation(module, edits))
        for case, modules in tables.items()
        for module, by_name in modules.items()
        for name, edits in by_name.items()
    }
