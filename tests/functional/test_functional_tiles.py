"""Products by group in tiles, and margin variances of all classes, against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isda.functional import grouping, quadratic
from isda.functional import quadratic as class_margins_module
from isda.functional.diagonal import scaled_diagonal_margins
from isda.functional.grouping import Tiles
from isda.functional.quadratic import class_margins, full_transform, product_by_group
from oracles import margin_variance, random_covariances

pytestmark = pytest.mark.any_device

C, A = 5, 4


@given(st.integers(1, 9), st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_every_row_has_a_place_of_its_own_in_a_tile_of_its_group(num_groups, labels):
    index = torch.tensor(labels) % num_groups
    tiles = Tiles(index, num_groups)
    places = tiles.place.tolist()
    assert len(set(places)) == len(places)
    assert max(places) < tiles.number * tiles.length
    assert [tiles.owner[place // tiles.length].item() for place in places] == index.tolist()
    assert tiles.number <= min(num_groups, len(labels)) + len(labels) // tiles.length


@pytest.mark.parametrize("workspace", [1, 300, 2**25])
@pytest.mark.parametrize("rows", [3, 23])  # fewer rows than groups, and more
def test_products_and_their_gradients_equal_those_of_every_row(rows, workspace, monkeypatch):
    for module in (grouping, quadratic):
        monkeypatch.setattr(module, "WORKSPACE_BYTES", workspace)
    monkeypatch.setattr(quadratic, "on_host", lambda tensor: False)
    index = torch.randint(C, (rows,))
    vectors = torch.randn(rows, A, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(C, A, 3, dtype=torch.float64, requires_grad=True)
    groups = grouping.group_rows(index, C, exact=False)
    expected = torch.stack([v @ matrices[i] for v, i in zip(vectors, index, strict=True)])
    ways = [
        product_by_group(vectors, matrices.index_select(0, groups.classes), groups),
        full_transform(vectors, matrices, groups),
    ]
    pull = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (vectors, matrices), pull, retain_graph=True)
    for actual in ways:
        torch.testing.assert_close(actual, expected)
        for ours, theirs in zip(torch.autograd.grad(actual, (vectors, matrices), pull), gradients, strict=True):
            torch.testing.assert_close(ours, theirs)


def both_margins(weight, covariances, pivots):
    """The two functions under test and their dense oracle, on scatters that are covariances times their counts."""
    count = torch.arange(2, 2 + C, dtype=torch.float64)
    scale, scatter = 1 / count, covariances * count.view(-1, 1, 1)
    diagonals = covariances.diagonal(dim1=1, dim2=2)
    order = list(range(C)) if pivots is None else pivots.tolist()
    yield (
        lambda w: scaled_diagonal_margins(w, scatter.diagonal(dim1=1, dim2=2), scale, pivots),
        margin_variance(weight, torch.diag_embed(diagonals), order),
    )
    if pivots is None:
        yield lambda w: class_margins(w, scatter, scale), margin_variance(weight, covariances, order)


@pytest.mark.parametrize("workspace", [1, 2**25])
@pytest.mark.parametrize("pivots", [None, [3, 0, 3]])
def test_margins_without_waiting_equal_the_oracle_with_both_derivatives(pivots, workspace, monkeypatch):
    for module in (grouping, class_margins_module):
        monkeypatch.setattr(module, "WORKSPACE_BYTES", workspace)
    weight = torch.randn(C, A, dtype=torch.float64, requires_grad=True)
    pivots = None if pivots is None else torch.tensor(pivots)
    for function, expected in both_margins(weight, random_covariances(C, A), pivots):
        actual = function(weight)
        torch.testing.assert_close(actual, expected)
        own = torch.arange(C) if pivots is None else pivots
        assert not actual.gather(1, own.unsqueeze(1)).any()
        pull = torch.randn_like(actual)
        (theirs,) = torch.autograd.grad(expected, weight, pull)
        for differentiable in (True, False):  # with a graph of its own the gradient takes another way
            (ours,) = torch.autograd.grad(actual, weight, pull, retain_graph=True, create_graph=differentiable)
            torch.testing.assert_close(ours, theirs)
        if weight.is_cpu:  # slow elsewhere, and the same plain expressions
            assert torch.autograd.gradgradcheck(function, (weight,))
