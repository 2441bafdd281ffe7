"""Passes that leave running statistics and random numbers alone."""

import pytest
import torch
from semi_helpers import normal, student
from torch import nn

from isda.lab.methods.semi import frozen_batch_norm
from isda.lab.methods.semi.base import RandomState


def state(network):
    return {name: value.clone() for name, value in network.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_statistics_are_used_but_not_kept(momentum):
    network = student(dropout=0.0)
    network.body[2].momentum = momentum
    network(normal(8, 18, seed=1))
    images, before = 3 + normal(8, 18, seed=2), state(network)
    with frozen_batch_norm(network):
        frozen = network(images)
    assert same(state(network), before)
    torch.testing.assert_close(frozen, network(images))
    assert not same(state(network), before)  # the pass above, outside, did update


def test_in_eval_mode_running_statistics_are_used_as_ever():
    network = student(dropout=0.0).eval()
    images = normal(8, 18, seed=2)
    with frozen_batch_norm(network):
        frozen = network(images)
    assert torch.equal(frozen, network(images))


def test_everything_is_as_before_after_an_error():
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(KeyError), frozen_batch_norm(network):
        raise KeyError
    assert [layer.track_running_stats for layer in network] == [True, False]
    before = state(network)
    network(torch.randn(4, 3))
    assert not same(state(network), before)


def test_blocks_may_be_nested():
    network = nn.Sequential(nn.BatchNorm1d(3))
    before = state(network)
    with frozen_batch_norm(network):
        with frozen_batch_norm(network):
            pass
        network(torch.randn(4, 3))
    assert same(state(network), before)
    assert network[0].track_running_stats


def test_replayed_draws_are_the_same_and_leave_the_generator_alone():
    state = RandomState(torch.device("cpu"))
    first = torch.rand(5)
    with state.replayed():
        assert torch.equal(torch.rand(5), first)
        torch.rand(100)
    following = torch.rand(5)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(10), torch.cat([first, following]))
