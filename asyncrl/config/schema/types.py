"""The value types of the schema: numbers with their range, and the names that an option may take."""

from typing import Annotated, Any, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
"""A whole number of things, at least one."""
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number, zero allowed."""
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""What a generator is seeded with."""
MinusOneOrMore = Annotated[int, msgspec.Meta(ge=-1)]
"""A whole number where -1 switches the limit off."""
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]
"""A number, zero allowed."""
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
"""A number above zero."""
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
"""A number from 0 to 1."""
PositiveFraction = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
"""A part of a whole, more than none of it."""
TopP = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
"""The kept share of the probability mass; 1 keeps all."""
Name = Annotated[str, msgspec.Meta(min_length=1)]
"""A text that is not empty."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
"""A TCP port."""

Table = dict[str, Any]
"""A free table: its keys are the user's."""
Dtype = Literal["fp32", "float32", "bf16", "bfloat16"]
"""A floating-point format, in either spelling of verl."""
KlEstimator = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+"
]  # fmt: skip
"""How a KL divergence is estimated from sampled tokens; the forms with ``+`` take the gradient of k2."""
LossAggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""How token losses become one number."""
