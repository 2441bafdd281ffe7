"""Seeds from several numbers."""

import torch

from isda.lab.data.augment.draws import splitmix64
from isda.lab.seeds import generator, mix


def test_mix_is_chained_splitmix64():
    state = torch.tensor(0)
    for part in (7, 3, 12):
        state = splitmix64(state + part)
    assert mix(7, 3, 12) == (int(state) % 2**64) >> 1


def test_neighbouring_seeds_and_epochs_do_not_collide():
    seeds = {mix(seed, epoch, rank) for seed in range(50) for epoch in range(50) for rank in range(4)}
    assert len(seeds) == 50 * 50 * 4


def test_generator_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    first = torch.randperm(10, generator=generator(1, 2))
    assert torch.equal(first, torch.randperm(10, generator=generator(1, 2)))
    assert torch.equal(before, torch.get_rng_state())
