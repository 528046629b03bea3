"""The quickstart's reward, each answer after a delay of its own; ``spread`` changes who is slow."""

import asyncio
import zlib
from typing import Any

from asyncrl.quickstart.reward import compute_score as plain


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any], spread: int = 1
) -> dict[str, float]:
    """Sleep up to 40 ms, by trajectory and ``spread``, then judge."""
    delay = zlib.crc32(f"{extra_info['trajectory_key']} {spread}".encode()) % 40
    await asyncio.sleep(delay / 1000)
    return dict(plain(data_source, solution_str, ground_truth, extra_info))
