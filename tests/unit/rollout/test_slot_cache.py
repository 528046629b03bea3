"""The slot cache as a container."""

import torch

from asyncrl.rollout.cache import SlotCache


def test_growth_and_moves_keep_what_is_stored() -> None:
    cache = SlotCache(max_slots=6, max_length=40)
    cache.reserve(2, 3)
    assert (cache.slots, cache.length) == (2, 16)
    keys = torch.arange(2 * 2 * 3 * 4, dtype=torch.float32).view(2, 2, 3, 4)
    index = (torch.arange(2)[:, None] * cache.length + torch.arange(3)).flatten()
    cache.aim(0, 2, 3, index)
    seen, values = cache.update(keys, -keys, 0)
    assert torch.equal(seen, keys)
    assert torch.equal(values, -keys)
    cache.reserve(5, 17)
    assert (cache.slots, cache.length) == (6, 32)
    cache.move([1], [4])
    cache.aim(4, 5, 4, torch.tensor([4 * cache.length + 3]))
    seen, _ = cache.update(torch.full((1, 2, 1, 4), 9.0), torch.zeros(1, 2, 1, 4), 0)
    assert torch.equal(seen[0, :, :3], keys[1])
    assert bool((seen[0, :, 3] == 9).all())
    cache.clear()
    assert cache.nbytes == 0
