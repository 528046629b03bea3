"""What a too long answer costs: DAPO, https://arxiv.org/abs/2503.14476. No torch: agent workers use it."""


def overlong_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """What is added to the score of an answer of ``length`` tokens: 0 up to ``limit - buffer``, then down to ``-factor``.

    It falls evenly over the ``buffer`` tokens before the ``limit``. Raises ValueError for a buffer that is not 1 .. limit.

    >>> overlong_penalty(14, limit=16, buffer=4, factor=1.0)
    -0.5
    """
    if not 1 <= buffer <= limit:
        raise ValueError(f"the overlong buffer must be between 1 and the limit of {limit} tokens, got {buffer}")
    over = max(0, length - (limit - buffer))
    return 0.0 - factor * over / buffer
