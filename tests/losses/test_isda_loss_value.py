"""ISDALoss against brute-force oracles: every covariance, both bounds, rows and pixels."""

import copy

import pytest
import torch
from loss_oracles import (
    COVARIANCES,
    bound_rows,
    class_covariances,
    jensen_tilts,
    library_tilt,
    normal,
    one_hot,
    row_loss,
    rows_of,
)

from isda import ISDALoss
from isda.functional.tilt import FoundTilt, search_tilt

CLASSES, DIM = 4, 5
BOUNDS = ("jensen", "tilted")
SHAPES = {"rows": (7,), "pixels": (2, 2, 3)}


def maps(shape, channels, seed):
    """(N, channels) or (N, channels, H, W)."""
    return normal(shape[0], channels, *shape[1:], seed=seed)


def labels_for(shape, seed):
    # Class 3 never occurs: its covariance stays zero.
    return torch.randint(0, CLASSES - 1, shape, generator=torch.Generator().manual_seed(seed))


def make(covariance, bound, **settings):
    if covariance == "learned":
        settings["uncertainty_weight"] = 0  # the term is tested with the covariance
    criterion = ISDALoss(
        CLASSES, DIM, covariance=covariance, bound=bound, dtype=torch.float64, schedule="constant", **settings
    )
    if covariance == "learned":
        with torch.no_grad():
            criterion.covariance.factor.copy_(0.6 * normal(*criterion.covariance.factor.shape, seed=3))
    return criterion


def problem(shape):
    """Two batches: one that was learned before, and the one whose loss is asked for."""
    earlier = normal(9, DIM, seed=10) + 3, labels_for((9,), seed=11)
    features, targets = maps(shape, DIM, seed=12) + 3, labels_for(shape, seed=13)
    logits = maps(shape, CLASSES, seed=14).requires_grad_()
    weight = (0.7 * normal(CLASSES, DIM, seed=15)).requires_grad_()
    return earlier, features, targets, logits, weight


def leaves(criterion, logits, weight):
    return [logits, weight, *criterion.parameters()]


def oracle(criterion, kind, earlier, features, targets, logits, weight, strength, sigmas=None):
    """The mean of the bound, and the leaves it was computed from."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in leaves(criterion, logits, weight)]
    if sigmas is None:
        seen = torch.cat([earlier[0], rows_of(features)])
        seen_labels = torch.cat([earlier[1], targets.flatten()])
        sigmas = class_covariances(kind, seen, seen_labels, CLASSES, factor=inputs[-1])
    rows, classes = rows_of(inputs[0]), targets.flatten()
    if criterion.bound == "tilted":
        tilts = library_tilt(criterion, rows.detach(), classes, weight.detach(), strength)
        assert not torch.allclose(tilts, jensen_tilts(classes, CLASSES), atol=1e-3)
    else:
        tilts = jensen_tilts(classes, CLASSES)
    augmented = bound_rows(rows, inputs[1], sigmas, classes, tilts, strength)
    losses = [
        row_loss(row, plain, one_hot(int(c), CLASSES)) for row, plain, c in zip(augmented, rows, classes, strict=True)
    ]
    return sum(losses) / len(losses), inputs


def assert_equal_with_gradients(loss, inputs, expected, expected_inputs, atol):
    assert loss.item() == pytest.approx(expected.item(), abs=atol, rel=0)
    grads = torch.autograd.grad(loss, inputs)
    expected_grads = torch.autograd.grad(expected, expected_inputs)
    for grad, reference in zip(grads, expected_grads, strict=True):
        assert reference.abs().max() > 1e-3
        torch.testing.assert_close(grad, reference, atol=atol, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_loss_and_gradients_equal_the_oracle(kind, bound, shape):
    earlier, features, targets, logits, weight = problem(SHAPES[shape])
    criterion = make(kind, bound)
    criterion.covariance.update(*earlier)
    loss = criterion(logits, targets, features=features, weight=weight, strength=0.8)
    expected, inputs = oracle(criterion, kind, earlier, features, targets, logits, weight, 0.8)
    assert_equal_with_gradients(loss, leaves(criterion, logits, weight), expected, inputs, 1e-10)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_shrunken_low_rank_sketch_is_used_as_the_matrix_it_stands_for(bound):
    earlier, features, targets, logits, weight = problem(SHAPES["rows"])
    criterion = make("low_rank", bound, rank=2)
    criterion.covariance.update(normal(40, DIM, seed=20), labels_for((40,), seed=21))
    loss = criterion(logits, targets, features=features, weight=weight, strength=0.8)
    sigmas = [criterion.covariance.covariance(c) for c in range(CLASSES)]
    exact = class_covariances(
        "low_rank",
        torch.cat([normal(40, DIM, seed=20), features]),
        torch.cat([labels_for((40,), seed=21), targets]),
        CLASSES,
    )
    assert (sigmas[0] - exact[0]).abs().max() > 1e-2  # it did shrink
    expected, inputs = oracle(criterion, None, earlier, features, targets, logits, weight, 0.8, sigmas)
    assert_equal_with_gradients(loss, [logits, weight], expected, inputs, 1e-10)


@pytest.mark.parametrize("num_classes", [3, 9])
@pytest.mark.parametrize("kind", COVARIANCES)
def test_tilted_loss_does_not_depend_on_how_the_products_are_formed(kind, num_classes, monkeypatch):
    features, targets = normal(6, DIM, seed=1), torch.arange(6) % 3
    values, tilts = [], []

    def first_tilt(*arguments):
        # With two samples per class many tilts give the same minimum: compare at one of them.
        tilts.append(search_tilt(*arguments))
        return tilts[0]._replace(memo=None)

    monkeypatch.setattr("isda.functional.bounds.search_tilt", first_tilt)
    for by_tables in (True, False):
        criterion = ISDALoss(
            num_classes, DIM, 1.0, covariance=kind, bound="tilted", dtype=torch.float64, schedule="constant"
        )
        monkeypatch.setattr(criterion.covariance, "prefers_gram", lambda rows, matrices, answer=by_tables: answer)
        logits = normal(6, num_classes, seed=2).requires_grad_()
        weight = normal(num_classes, DIM, seed=3).requires_grad_()
        loss = criterion(logits, targets, features=features, weight=weight)
        values.append([loss, *torch.autograd.grad(loss, leaves(criterion, logits, weight))])
    for by_table, by_row in zip(*values, strict=True):
        torch.testing.assert_close(by_table, by_row, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("kind", "shape"), [*((kind, "rows") for kind in COVARIANCES), ("full", "pixels"), ("diagonal", "pixels")]
)
def test_gradcheck(kind, bound, shape):
    earlier, features, targets, logits, weight = problem(SHAPES[shape])
    # With the search run to the end, finite differences of the minimum must agree with the gradient at a fixed tilt.
    settings = {"rank": 2} if kind == "learned" else {}
    criterion = make(kind, bound, tilt_steps=15, **settings)
    criterion.covariance.update(*earlier)

    def loss(logits, weight, *factor):
        # The statistics move with every call; a learned covariance has none, and a copy would lose its parameter.
        fresh = criterion if factor else copy.deepcopy(criterion)
        return fresh(logits, targets, features=features, weight=weight, strength=0.8)

    assert torch.autograd.gradcheck(loss, leaves(criterion, logits, weight), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_float32_is_within_1e5_of_float64(kind, bound, monkeypatch):
    classes, dim, rows = 20, 32, 64
    targets = torch.arange(rows) % classes
    tilts = []

    def same_tilt_in_both(*arguments):
        # Iterations whose values agree to rounding are chosen by luck: compare at one tilt, that of float32.
        tilts.append(search_tilt(*arguments))
        return FoundTilt(tilts[0].tilt.to(logits.dtype), tilts[-1].value, None)

    monkeypatch.setattr("isda.functional.bounds.search_tilt", same_tilt_in_both)
    results = {}
    for dtype in (torch.float32, torch.float64):
        criterion = ISDALoss(classes, dim, covariance=kind, bound=bound, dtype=dtype, schedule="constant")
        logits = normal(rows, classes, seed=1, dtype=torch.float32).to(dtype).requires_grad_()
        weight = (0.2 * normal(classes, dim, seed=2, dtype=torch.float32)).to(dtype).requires_grad_()
        features = (normal(rows, dim, seed=3, dtype=torch.float32) + 2).to(dtype)
        loss = criterion(logits, targets, features=features, weight=weight, strength=0.5)
        assert loss.dtype == dtype
        results[dtype] = [loss, *torch.autograd.grad(loss, leaves(criterion, logits, weight))]
    for single, double in zip(results[torch.float32], results[torch.float64], strict=True):
        assert (single.double() - double).norm() <= 1e-5 * double.norm()


@pytest.mark.parametrize("kind", COVARIANCES)
def test_the_tilted_loss_searched_for_in_float32_is_within_1e5_of_float64(kind):
    targets = torch.arange(64) % 20
    losses = {}
    for dtype in (torch.float32, torch.float64):
        criterion = ISDALoss(20, 32, covariance=kind, bound="tilted", dtype=dtype, schedule="constant")
        logits, weight, features = (
            (scale * normal(rows, columns, seed=seed, dtype=torch.float32)).to(dtype)
            for rows, columns, scale, seed in ((64, 20, 1, 1), (20, 32, 0.2, 2), (64, 32, 1, 3))
        )
        losses[dtype] = criterion(logits, targets, features=features, weight=weight, strength=0.5).item()
    assert losses[torch.float32] == pytest.approx(losses[torch.float64], rel=1e-5)


def test_a_class_without_statistics_gets_plain_cross_entropy():
    criterion = make("full", "jensen")
    logits, weight = normal(3, CLASSES, seed=1), normal(CLASSES, DIM, seed=2)
    features = normal(1, DIM, seed=3).expand(3, DIM)
    loss = criterion(logits, torch.tensor([0, 1, 2]), features=features, weight=weight, strength=5.0)
    # One feature per class: every covariance is zero.
    expected = sum(row_loss(row, row, one_hot(c, CLASSES)) for c, row in enumerate(logits)) / 3
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)


def test_the_weight_of_a_1x1_convolution_is_taken_as_it_is():
    _, features, targets, logits, weight = problem(SHAPES["pixels"])
    flat = make("full", "jensen")(logits, targets, features=features, weight=weight, strength=0.8)
    convolution = weight.detach()[:, :, None, None].requires_grad_()
    loss = make("full", "jensen")(logits, targets, features=features, weight=convolution, strength=0.8)
    assert torch.equal(loss, flat)
    (grad,) = torch.autograd.grad(loss, convolution)
    assert torch.equal(grad[:, :, 0, 0], torch.autograd.grad(flat, weight)[0])


def test_features_get_no_gradient_of_their_own():
    _, features, targets, logits, weight = problem(SHAPES["rows"])
    features.requires_grad_()
    loss = make("full", "jensen")(logits, targets, features=features, weight=weight, strength=0.8)
    assert torch.autograd.grad(loss, features, allow_unused=True) == (None,)


def test_an_instance_of_a_covariance_model_is_used_as_it_is():
    from isda.covariance import DiagonalCovariance

    model = DiagonalCovariance(CLASSES, DIM, decay=0.9, dtype=torch.float64)
    criterion = ISDALoss(CLASSES, DIM, covariance=model, schedule="constant")
    assert criterion.covariance is model


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", ["full", "shared"])
def test_labels_of_any_integer_type_give_the_same_loss(kind, bound, dtype):
    _, features, targets, logits, weight = problem(SHAPES["rows"])
    expected = make(kind, bound)(logits, targets, features=features, weight=weight, strength=0.8)
    actual = make(kind, bound)(logits, targets.to(dtype), features=features, weight=weight, strength=0.8)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(("workspace", "num_classes"), [(2**10, 6), (None, 210), (2**10, 210)])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", ["full", "low_rank", "diagonal"])
def test_wide_features_and_bounded_workspaces_change_nothing(kind, bound, num_classes, workspace, monkeypatch):
    dim, rows, strength = 200, 6, 0.4
    if workspace is not None:
        for module in ("grouping", "quadratic", "bounds"):
            monkeypatch.setattr(f"isda.functional.{module}.WORKSPACE_BYTES", workspace)
        monkeypatch.setattr("isda.covariance.full.WORKSPACE_BYTES", workspace)
    features, targets = normal(rows, dim, seed=1), torch.tensor([0, 2, 2, 0, 5, 5])
    logits = normal(rows, num_classes, seed=2).requires_grad_()
    weight = (0.1 * normal(num_classes, dim, seed=3)).requires_grad_()
    criterion = ISDALoss(num_classes, dim, covariance=kind, bound=bound, dtype=torch.float64, schedule="constant")
    loss = criterion(logits, targets, features=features, weight=weight, strength=strength)
    sigmas = torch.stack(class_covariances(kind, features, targets, 6))[targets]
    tilts = jensen_tilts(targets, num_classes)
    if bound == "tilted":
        tilts = library_tilt(criterion, logits.detach(), targets, weight.detach(), strength)
    difference = weight - (tilts @ weight).unsqueeze(1)
    augmented = logits + strength / 2 * torch.einsum("nca,nab,ncb->nc", difference, sigmas, difference)
    expected = (torch.logsumexp(augmented, 1) - logits.gather(1, targets[:, None])[:, 0]).mean()
    assert_equal_with_gradients_of(loss, expected, [logits, weight])


def assert_equal_with_gradients_of(loss, expected, inputs):
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=0)
    for grad, reference in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(grad, reference, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["labels", "soft", "pixels"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_float64_inputs_give_a_float64_loss_also_with_float32_statistics(covariance, bound, kind):
    shape = (2, 4, 3, 2) if kind == "pixels" else (6, 4)
    settings = {"rank": 2} if covariance in ("low_rank", "learned") else {}
    features, weight = normal(*shape, seed=1), normal(3, 4, seed=2).requires_grad_()
    targets = torch.arange(shape[0] * (6 if kind == "pixels" else 1)).view(shape[0], *shape[2:]) % 3
    if kind == "soft":
        targets = torch.nn.functional.one_hot(targets, 3).double()
    criterion, wide = (
        ISDALoss(3, 4, 0.7, covariance=covariance, bound=bound, dtype=dtype, schedule="constant", **settings)
        for dtype in (torch.float32, torch.float64)
    )
    if covariance == "learned":
        with torch.no_grad():
            wide.covariance.factor.copy_(criterion.covariance.factor)
    logits = torch.einsum("na...,ca->nc...", features, weight)
    results = []
    for made in (criterion, wide):
        loss = made(logits, targets, features=features, weight=weight)
        augmented = made.augmented_logits(logits, targets, weight=weight)
        results.append([loss, made.consistency(logits, weight=weight), augmented])
        results[-1] += torch.autograd.grad(sum(value.sum() for value in results[-1]), [weight], retain_graph=True)
    # Sums of at most 12 products of float32 statistics. Of two tilts whose values differ by no more than the rounding,
    # 4 eps |c|, either may be chosen: the values then agree that well, but what depends on the tilt to first order (the
    # augmented logits, the gradient) only to the square root of it.
    epsilon = torch.finfo(torch.float32).eps
    largest = float(results[1][2].detach().abs().max())
    exact, loose = 32 * epsilon, (8 * epsilon * largest) ** 0.5 if bound == "tilted" else 32 * epsilon
    for ours, theirs, tolerance in zip(*results, (exact, exact, loose, loose), strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * max(1.0, float(theirs.abs().max())))


def test_logits_in_float64_keep_their_digits_beside_float32_statistics():
    criterion = ISDALoss(3, 4, 0.7, dtype=torch.float32, schedule="constant")
    features, weight, targets = normal(6, 4, seed=1), normal(3, 4, seed=2), torch.arange(6) % 3
    logits = features @ weight.t()
    criterion(logits, targets, features=features, weight=weight)
    moved = logits + 1e-12 * normal(6, 3, seed=3)
    assert not torch.equal(*(criterion.augmented_logits(z, targets, weight=weight) for z in (logits, moved)))
