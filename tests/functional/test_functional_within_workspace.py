"""What is worked through in chunks stays within the workspace, and makes use of it: seen in every tensor made."""

from __future__ import annotations

import pytest
import torch

from isda import covariance
from isda.covariance import full
from isda.functional import bounds as consistency
from isda.functional import grouping, jensen_consistency, quadratic
from isda.functional import grouping as workspace
from isda.functional import moments as device_moments
from isda.functional import quadratic as class_margins
from isda.functional.diagonal import diagonal_gram
from isda.functional.grouping import Tiles, group_rows
from isda.functional.moments import add_outer_products_on_device
from isda.functional.quadratic import class_margins as margins_of_classes
from isda.functional.quadratic import full_gram, full_quadratic, full_transform
from isda.functional.sketch import append_rows
from isda.functional.tables import quadratic_tables
from isda.functional.tilt import find_tilt
from largest_tensor import LargestTensor

WORKSPACE = 2**15
C, A = 8, 16
"""A matrix A x A of float64 is a sixteenth of the workspace."""


def set_workspace(monkeypatch, size):
    for module in (class_margins, consistency, device_moments, full, grouping, quadratic):
        monkeypatch.setattr(module, "WORKSPACE_BYTES", size)


@pytest.fixture(autouse=True)
def small_workspace(monkeypatch):
    set_workspace(monkeypatch, WORKSPACE)
    monkeypatch.setattr(workspace, "_spare", {})


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def seen(function, *inputs: torch.Tensor) -> int:
    """Bytes of the largest tensor that a call makes, forward and backward; inputs do not count."""
    with LargestTensor(inputs) as watch:
        result = function()
        if result is not None and result.requires_grad:
            result.sum().backward()
    return watch.largest


def learned(kind: str, num_classes: int = C, **settings) -> covariance.CovarianceModel:
    model = covariance.create(kind, num_classes, A, dtype=torch.float64, **settings)
    model.update(normal(4 * num_classes, A), torch.arange(num_classes).repeat(4))
    return model


def tiles_product():
    rows, matrices = normal(32, A), normal(16, A, A)
    tiles = Tiles(torch.arange(32) % 16, 16)
    return lambda: tiles.product(rows, matrices), [rows, matrices]


def tiles_outer_products():
    rows, scatter = normal(32, A), normal(16, A, A)
    tiles = Tiles(torch.arange(32) % 16, 16)
    return lambda: tiles.add_outer_products(scatter, rows) or scatter, [rows, scatter]


def outer_products_of_few_rows():
    rows, scatter, groups = normal(32, A), normal(40, A, A), group_rows(torch.arange(32), 40, exact=False)
    return lambda: add_outer_products_on_device(scatter, rows, groups) or scatter, [rows, scatter]


def outer_products_of_many_rows():
    rows, scatter, groups = normal(48, A), normal(16, A, A), group_rows(torch.arange(48) % 16, 16, exact=False)
    return lambda: add_outer_products_on_device(scatter, rows, groups) or scatter, [rows, scatter]


def gram_of_diagonals():
    weight, variance = normal(C, A), normal(64, A)
    return lambda: diagonal_gram(weight, variance), [weight, variance]


def sketches():
    sketch, fill = normal(64, 8, A), torch.full((64,), 8)
    index = torch.cat([torch.arange(64), torch.zeros(20, dtype=torch.int64)])
    rows = normal(len(index), A)
    return lambda: append_rows(sketch, fill, rows, index) or sketch, [sketch, rows]


def margins_of_all_classes():
    weight, matrices, scale = normal(24, C).requires_grad_(), normal(24, C, C), torch.ones(24).double()
    return lambda: margins_of_classes(weight, matrices, scale), [weight, matrices]


def published_consistency():
    model, weight, logits = learned("full"), normal(C, A).requires_grad_(), normal(256, C).requires_grad_()
    return lambda: jensen_consistency(logits, weight, model, 0.5), [weight, logits, *model.buffers()]


def published_consistency_of_many_classes():
    model, weight, logits = learned("diagonal", 48), normal(48, A).requires_grad_(), normal(48, 48).requires_grad_()
    return lambda: jensen_consistency(logits, weight, model, 0.5), [weight, logits, *model.buffers()]


def forms_of_few_classes():
    model, weight = learned("full", 32), normal(32, A)
    targets, few = torch.arange(256) % 32, torch.randint(32, (256, 4))
    tables = quadratic_tables(weight, model, model.groups(targets))
    return lambda: tables.restricted(few, slice(0, 256)), [weight, few, *model.buffers()]


def product_of_rows_off_the_host():
    rows, matrices = normal(64, A), normal(16, A, A)
    index = torch.arange(64) % 16
    return lambda: quadratic._product_without_waiting(rows, matrices, index, complete=True), [rows, matrices]


def stacks(kind: str, **settings):
    model, rows, matrices = learned(kind, **settings), normal(64, 2, A), torch.arange(64) % C
    kept = [rows, *model.parameters(), *model.buffers()]
    return lambda: model.transform_stacks(rows, matrices).detach(), kept


def rows_of_a_sketch():
    model, rows = learned("low_rank", rank=4), normal(128, A)
    transform = model.transform(group_rows(torch.arange(128) % C, C))
    return lambda: transform(rows), [rows, *model.buffers()]


def tables_of_sketches(form: str):
    model, weight, matrices = learned("low_rank", rank=4), normal(C, A), torch.arange(64) % C
    pivots = [matrices] if form == "margins" else []
    return lambda: getattr(model, form)(weight, matrices, *pivots), [weight, *model.buffers()]


def update(kind: str):
    model, features, targets = learned(kind), normal(512, A), torch.arange(512) % C
    model.validate = False

    def statistics() -> torch.Tensor:
        model.update(features, targets)
        return torch.stack([model.covariance(c) + model.mean[c] for c in range(C)])

    return statistics, [features, targets, *model.buffers()]


class Plain(covariance.CovarianceModel):
    """A model that is known by its product alone."""

    def product(self, vectors, matrices):
        return vectors * (1 + matrices).unsqueeze(1)


def tables_of_a_plain_model(form: str):
    model, weight, matrices = Plain(C, A), normal(C, A).requires_grad_(), torch.arange(64) % C
    pivots = [matrices] if form == "margins" else []
    return lambda: getattr(model, form)(weight, matrices, *pivots), [weight]


CASES = {
    "products in tiles": tiles_product,
    "outer products in tiles": tiles_outer_products,
    "outer products of fewer rows than classes": outer_products_of_few_rows,
    "outer products of more rows than classes": outer_products_of_many_rows,
    "gram tables of diagonals": gram_of_diagonals,
    "shrinking of sketches": sketches,
    "margins of all classes": margins_of_all_classes,
    "consistency": published_consistency,
    "consistency of many classes": published_consistency_of_many_classes,
    "forms of few classes": forms_of_few_classes,
    "rows times matrices off the host": product_of_rows_off_the_host,
    "stacks, full": lambda: stacks("full"),
    "stacks, low rank": lambda: stacks("low_rank", rank=8),
    "stacks, learned": lambda: stacks("learned"),
    "rows of a sketch": rows_of_a_sketch,
    "update, full": lambda: update("full"),
    "update, diagonal": lambda: update("diagonal"),
    **{f"{form} of sketches": lambda form=form: tables_of_sketches(form) for form in ("variances", "margins", "gram")},
    **{f"{form}, plain": lambda form=form: tables_of_a_plain_model(form) for form in ("variances", "margins", "gram")},
}


@pytest.mark.parametrize("case", CASES)
def test_chunks_fill_a_good_part_of_the_workspace_and_no_more(case):
    function, inputs = CASES[case]()
    assert WORKSPACE / 5 <= seen(function, *inputs) <= WORKSPACE


@pytest.mark.parametrize("case", CASES)
def test_in_how_many_chunks_changes_nothing(case, monkeypatch):
    def outcome(size):
        """What a call returns, and the gradients of its inputs."""
        set_workspace(monkeypatch, 2**30)
        torch.manual_seed(0)
        function, inputs = CASES[case]()
        set_workspace(monkeypatch, size)
        result = function()
        if not result.requires_grad:
            return [result]
        trained = [tensor for tensor in inputs if tensor.requires_grad]
        return [result, *torch.autograd.grad(result.cos().sum(), trained)]

    whole = outcome(2**30)
    for size in (1, WORKSPACE, 2 * WORKSPACE, 3 * WORKSPACE, 4 * WORKSPACE):
        for ours, theirs in zip(outcome(size), whole, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", [full_quadratic, full_gram])
def test_products_with_full_matrices_take_the_workspace_twice(form):
    """Once for the product and once for what it is multiplied with."""
    weight, matrices = normal(A, A).requires_grad_(), normal(C, A, A)
    groups = torch.arange(32) % C
    assert WORKSPACE <= seen(lambda: form(weight, matrices, groups), weight, matrices, groups) <= 2 * WORKSPACE


def test_matrices_are_copied_only_where_they_fit():
    for num_classes, copied in ((16, True), (17, False)):
        model = learned("full", num_classes)
        groups = model.groups(torch.arange(num_classes))
        largest = seen(lambda model=model, groups=groups: model.transform(groups) and None, *model.buffers())
        assert (largest == num_classes * A * A * 8) == copied


def test_rows_are_multiplied_with_every_matrix_while_the_products_fit():
    for rows, all_at_once in ((64, True), (65, False)):
        vectors, matrices, index = normal(rows, A), normal(4, A, A), torch.arange(rows) % 4
        largest = seen(
            lambda v=vectors, m=matrices, i=index: quadratic._product_without_waiting(v, m, i, complete=True),
            *(vectors, matrices, index),
        )
        assert (largest == WORKSPACE) == all_at_once


def test_many_rows_of_full_matrices_make_no_copy_of_the_matrices():
    rows, matrices, groups = normal(64, A), normal(64, A, A), group_rows(torch.arange(64), 64)
    assert seen(lambda: full_transform(rows, matrices, groups), rows, matrices) <= WORKSPACE


@pytest.mark.parametrize("num_classes", [12, 40])
def test_the_search_for_the_tilt_keeps_the_systems_of_its_rows_within_the_workspace(num_classes):
    model, weight, logits = learned("diagonal", num_classes), normal(num_classes, A), normal(96, num_classes)
    targets = torch.arange(96) % num_classes
    tables = quadratic_tables(weight, model, model.groups(targets))
    assert seen(lambda: find_tilt(logits, tables, targets, 0.5), logits, weight, *model.buffers()) <= WORKSPACE
