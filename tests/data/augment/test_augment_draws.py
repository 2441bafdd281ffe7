from __future__ import annotations

import pytest
import torch

from isda.lab.data.augment import Draws
from isda.lab.data.augment.draws import splitmix64

# The published outputs of SplitMix64 for seed 1234567.
PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


def reference_outputs(seed: int, count: int) -> list[int]:
    mask = (1 << 64) - 1
    outputs = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        bits = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
        outputs.append(bits ^ (bits >> 31))
    return outputs


def test_splitmix64_gives_the_published_sequence() -> None:
    assert reference_outputs(1234567, 5) == PUBLISHED
    increment = 0x9E3779B97F4A7C15
    states = [(1234567 + step * increment) % (1 << 64) for step in range(5)]
    signed = torch.tensor([state - (1 << 64) if state >= 1 << 63 else state for state in states])
    assert [value % (1 << 64) for value in splitmix64(signed).tolist()] == PUBLISHED


def test_a_samples_numbers_are_the_splitmix64_stream_of_its_key() -> None:
    keys = torch.tensor([0, 1, -1, 1234567, -(1 << 63), (1 << 63) - 1])
    uniform = Draws(keys).uniform(7)
    integers = Draws(keys).integers(81, count=7)
    for row, key in enumerate(keys.tolist()):
        stream = reference_outputs(key % (1 << 64), 7)
        assert uniform[row].tolist() == [(value >> 40) / 2**24 for value in stream]
        assert integers[row].tolist() == [((value >> 32) * 81) >> 32 for value in stream]


def test_draws_of_a_sample_do_not_depend_on_batch_composition_or_order() -> None:
    whole = Draws.for_samples(torch.arange(100), seed=3, epoch=5).uniform(4)
    chosen = torch.tensor([99, 3, 42, 3])
    assert torch.equal(Draws.for_samples(chosen, seed=3, epoch=5).uniform(4), whole[chosen])


def test_draws_change_with_seed_epoch_and_index() -> None:
    indices = torch.arange(50)
    variants = [
        Draws.for_samples(indices, seed=seed, epoch=epoch).uniform(2)
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1), (-1, 0), (0, 2)]
    ]
    everything = torch.cat(variants).flatten()
    # 600 numbers out of 2^24: a shared stream would repeat dozens of them, chance at most a few.
    assert everything.unique().numel() >= 597


def test_successive_calls_continue_the_stream() -> None:
    together = Draws(torch.arange(6)).uniform(5)
    draws = Draws(torch.arange(6))
    assert torch.equal(torch.cat([draws.uniform(2), draws.uniform(3)], dim=1), together)


def test_generator_gives_reproducible_keys_and_advances() -> None:
    generator = torch.Generator().manual_seed(9)
    first, second = Draws.from_generator(8, generator), Draws.from_generator(8, generator)
    again = Draws.from_generator(8, torch.Generator().manual_seed(9))
    assert torch.equal(first.keys, again.keys)
    assert not torch.equal(first.keys, second.keys)
    assert torch.unique(torch.cat([first.keys, second.keys])).numel() == 16
    assert bool((first.keys < 0).any())
    assert bool((first.keys > 0).any())


def test_uniform_numbers_have_the_right_moments_and_no_correlation() -> None:
    values = Draws.for_samples(torch.arange(20000), seed=0).uniform(3).double()
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    torch.testing.assert_close(values.mean(0), torch.full((3,), 0.5).double(), atol=0.01, rtol=0)
    torch.testing.assert_close(values.var(0), torch.full((3,), 1 / 12).double(), atol=0.002, rtol=0)
    neighbours = torch.cat([values[:-1], values[1:]], dim=1).T
    correlation = torch.corrcoef(neighbours) - torch.eye(6)
    assert float(correlation.abs().max()) < 0.03


@pytest.mark.parametrize("bound", [1, 2, 9, 25])
def test_integers_are_uniform(bound: int) -> None:
    values = Draws.for_samples(torch.arange(18000), seed=1).integers(bound)[:, 0]
    counts = torch.bincount(values, minlength=bound).double()
    assert len(counts) == bound
    expected = 18000 / bound
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # Mean plus five standard deviations of the chi-square distribution with bound - 1 degrees of freedom.
    assert chi_square <= (bound - 1) + 5 * (2 * (bound - 1)) ** 0.5


def test_wrong_keys_indices_and_bounds_are_named() -> None:
    with pytest.raises(ValueError, match=r"keys must be a 1-D int64 tensor, got torch.float32"):
        Draws(torch.zeros(3))
    with pytest.raises(ValueError, match=r"indices must be a 1-D integer tensor"):
        Draws.for_samples(torch.zeros(3, 2, dtype=torch.int64), seed=0)
    with pytest.raises(ValueError, match=r"bound must be .* got 0"):
        Draws(torch.zeros(3, dtype=torch.int64)).integers(0)
