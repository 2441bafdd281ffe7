"""Covariances learned online against the covariance of the whole stream, and what is made of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import oracles
import pretend_accelerator
from isda import covariance
from isda._checks import NonFiniteError
from isda.covariance import Covariance, Groups, LowRankCovariance, base, full
from largest_tensor import LargestTensor
from loss_cases import (
    KINDS,
    ONLINE,
    assert_same_state,
    assert_same_with_gradients,
    covariance_model,
    integers,
    learned,
    normal,
    state_of,
)

C, A = 4, 5


def stream(n: int = 40, *, seed: int = 0, mean: float = 0.0, dtype=torch.float64):
    """Features, whose classes have covariances and means of their own, and labels; the last class never occurs."""
    targets = integers(C - 1, n, seed=seed + 1)
    mixing = normal(C, A, A, seed=seed + 2)
    features = (normal(n, 1, A, seed=seed) @ mixing[targets]).squeeze(1) + targets.unsqueeze(1) + mean
    return features.to(dtype), targets


def matrices_of(model: Covariance) -> torch.Tensor:
    return torch.stack([model.covariance(c) for c in range(model.num_classes)]).detach().double()


def assert_matrices_close(model: Covariance, expected: torch.Tensor, tolerance: float = 1e-10) -> None:
    scale = float(expected.abs().max().clamp(min=1e-300))
    torch.testing.assert_close(matrices_of(model), expected, rtol=0, atol=tolerance * scale)


@st.composite
def orders(draw):
    """Where a stream is cut into batches, and a seed of its order."""
    sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    return draw(st.integers(0, 2**31)), sizes


# -- eqs. (1) to (3) ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ONLINE)
@pytest.mark.parametrize(("dtype", "mean", "tolerance"), [(torch.float64, 1e4, 1e-9), (torch.float32, 1e3, 1e-4)])
@given(order=orders())
def test_any_split_and_order_gives_the_covariance_of_the_stream(kind, dtype, mean, tolerance, order):
    seed, sizes = order
    features, targets = stream(sum(sizes), seed=seed, mean=mean, dtype=dtype)
    model = covariance_model(kind, C, A, dtype=dtype, **({"rank": 60} if kind == "low_rank" else {}))
    for part in torch.randperm(len(features), generator=torch.Generator().manual_seed(seed)).split(sizes):
        model.update(features[part], targets[part])
    assert_matrices_close(model, oracles.covariances_of(kind, features, targets, C), tolerance)
    if kind == "shared":
        targets = torch.zeros_like(targets)
    means = oracles.batch_mean(features, targets, len(model.count))
    torch.testing.assert_close(model.mean.double(), means, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=1e-9)
    assert model.count.tolist() == torch.bincount(targets, minlength=len(model.count)).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_not_counted_change_nothing(kind):
    (features, targets), model, other = stream(), covariance_model(kind, C, A), covariance_model(kind, C, A)
    counted = integers(2, len(targets), seed=8).bool()
    wrong = torch.where(counted, targets, -100)
    model.update(features, wrong, counted)
    other.update(features[counted], targets[counted])
    assert model.count.sum() == counted.sum()
    assert_matrices_close(model, matrices_of(other))
    before = state_of(model)
    model.update(features[:3], targets[:3], torch.zeros(3, dtype=torch.bool))
    model.update(features[:0], targets[:0])
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_a_class_that_does_not_occur_in_a_batch_keeps_its_state_to_the_bit():
    model = covariance_model("full", C, A)
    model.update(*stream())
    before = model.scatter[1].clone(), model.mean[1].clone()
    features, _ = stream(6, seed=9)
    model.update(features, torch.tensor([0, 2, 2, 0, 3, 3]))
    assert torch.equal(model.scatter[1], before[0])
    assert torch.equal(model.mean[1], before[1])
    assert model.covariance(3).abs().max() > 0


def test_counts_are_exact_beyond_what_float32_can_count():
    model = covariance_model("diagonal", 2, 3, dtype=torch.float32)
    model.count.fill_(2**24)
    model.update(torch.zeros(1, 3), torch.tensor([1]))
    assert model.count.tolist() == [2**24, 2**24 + 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_features_in_half_precision_and_under_autocast_are_summed_in_float32(dtype):
    features, targets = stream(mean=3.0, dtype=dtype)
    model = covariance_model("full", C, A, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.update(features, targets)
    assert model.scatter.dtype == torch.float32
    assert_matrices_close(model, oracles.batch_covariance(features, targets, C), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_features_keep_their_values_and_get_no_gradient(kind):
    features, targets = stream()
    before = features.clone()
    model = covariance_model(kind, C, A)
    model.update(features.requires_grad_(), targets)
    torch.testing.assert_close(features.detach(), before, rtol=0, atol=0)
    assert not any(buffer.requires_grad for buffer in model.buffers())


# -- a limited memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diagonal", "low_rank"])
def test_memory_scales_each_class_down_before_an_update(kind):
    model, weights = covariance_model(kind, C, A, memory=7), torch.zeros(0).double()
    features, targets = stream(60)
    for part in torch.arange(60).split(20):
        for c in range(C):
            mine = targets[: len(weights)] == c
            total = weights[mine].sum()
            weights[mine] *= 7 / total if total > 7 else 1
        model.update(features[part], targets[part])
        weights = torch.cat([weights, torch.ones(len(part)).double()])
    expected = []
    for c in range(C):
        w, rows = weights[targets == c], features[targets == c]
        mean = (w[:, None] * rows).sum(0) / w.sum().clamp(min=1)
        expected.append((w[:, None] * (rows - mean)).t() @ (rows - mean) / w.sum().clamp(min=1))
        assert model.count[c].item() == round(w.sum().item())
        torch.testing.assert_close(model.mean[c], mean)
    expected = torch.stack(expected)
    if kind == "diagonal":
        expected = torch.diag_embed(expected.diagonal(dim1=1, dim2=2))
    if kind == "low_rank":  # with a sketch of 2A rows only the diagonal is certain
        matrices = matrices_of(model).diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(matrices, expected.diagonal(dim1=1, dim2=2))
    else:
        assert_matrices_close(model, expected)


@pytest.mark.parametrize("kind", ["within", "shared"])
def test_one_matrix_forgets_by_the_features_of_all_classes(kind):
    model = covariance_model(kind, C, A, memory=5)
    first, second = stream(60), stream(8, seed=5)
    model.update(*first)
    before = model.scatter.clone()
    model.update(*second)
    kept = 5 * len(model.count)
    assert model.count.sum().item() == pytest.approx(kept + 8, abs=C)
    if kind == "within":
        rounded = (torch.bincount(first[1], minlength=C) * kept / 60).round()
        means = oracles.batch_mean(*first, C)
        added = sum(
            torch.outer(x - m, x - m) for x, m in zip(second[0], oracles.batch_mean(*second, C)[second[1]], strict=True)
        )
        new = torch.bincount(second[1], minlength=C)
        gaps = oracles.batch_mean(*second, C) - means
        between = sum((n * m / max(n + m, 1)) * torch.outer(g, g) for n, m, g in zip(rounded, new, gaps, strict=True))
        torch.testing.assert_close(model.scatter[0], before[0] * kept / 60 + added + between)


def test_without_memory_nothing_is_forgotten_and_less_than_it_is_kept():
    for memory in (None, 1000):
        model = covariance_model("full", C, A, memory=memory)
        features, targets = stream()
        model.update(features[:20], targets[:20])
        model.update(features[20:], targets[20:])
        assert_matrices_close(model, oracles.batch_covariance(features, targets, C))


# -- merging, forgetting, drawing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diagonal", "low_rank", "shared", "within", "identity"])
def test_two_streams_merged_are_one(kind):
    settings = {"rank": 40} if kind == "low_rank" else {}
    one, two, empty = (covariance_model(kind, C, A, **settings) for _ in range(3))
    (x, y), (u, v) = stream(30, mean=3.0), stream(17, seed=5)
    one.update(x, y)
    two.update(u, v)
    state = state_of(two)
    one.merge(two)
    one.merge(empty)
    assert_same_state(two, state)
    assert_matrices_close(one, oracles.covariances_of(kind, torch.cat([x, u]), torch.cat([y, v]), C))
    empty.merge(two)
    assert_matrices_close(empty, matrices_of(two))
    assert one.count.sum() == 47


def test_models_of_other_kinds_and_sizes_are_not_merged():
    model = covariance_model("full", C, A)
    for other in (
        covariance_model("diagonal", C, A),
        covariance_model("full", C + 1, A),
        covariance_model("full", C, 2),
    ):
        with pytest.raises(ValueError, match="other must be a FullCovariance of the same sizes"):
            model.merge(other)
    with pytest.raises(ValueError, match="cannot be merged"):
        covariance_model("learned", C, A).merge(covariance_model("learned", C, A))


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_reset_forgets_everything(kind):
    model, _ = learned(kind, C, A)
    model.reset()
    assert_same_state(model, state_of(covariance_model(kind, C, A)))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_moments_of_the_covariance(kind):
    model, sigmas = learned(kind, 3, 4)
    labels, n = torch.tensor([2, 0, 2]), 20_000
    draws = model.sample(labels, n, generator=torch.Generator().manual_seed(1)).detach()
    assert draws.shape == (3, n, 4)
    torch.testing.assert_close(draws, model.sample(labels, n, generator=torch.Generator().manual_seed(1)).detach())
    for c, rows in zip(labels.tolist(), draws, strict=True):
        sigma = sigmas[c].detach()
        deviation = sigma.diagonal().sqrt()
        assert (rows.mean(0).abs() < 4.5 * deviation / n**0.5).all()
        # Var of s_ij is (s_ii s_jj + s_ij^2) / n.
        error = ((torch.outer(sigma.diagonal(), sigma.diagonal()) + sigma.square()) / n).sqrt()
        assert ((rows.t() @ rows / n - sigma).abs() < 4.5 * error).all()
    assert (draws[0] - draws[2]).abs().max() > 1, "rows of one class have draws of their own"


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_root_exists_at_any_rank(rank, dtype):
    eps = torch.finfo(dtype).eps
    factor = normal(6, 5, max(rank, 1), seed=1) * (rank > 0) * torch.logspace(-3, 3, 5).double().unsqueeze(1)
    sigma = (factor @ factor.mT).to(dtype)
    result = full.covariance_root(sigma)
    assert result.isfinite().all()
    scale = sigma.diagonal(dim1=1, dim2=2).sqrt()
    error = (result @ result.mT - sigma).abs() / (scale.unsqueeze(2) * scale.unsqueeze(1)).clamp(min=1e-30)
    assert error.max() < 100 * eps
    torch.testing.assert_close(
        base.root(sigma) @ base.root(sigma).mT, sigma, rtol=0, atol=1e3 * eps * float(sigma.max() + 1)
    )


# -- products and margins --------------------------------------------------------------------------------------------


@pytest.fixture(params=["workspace of one row", "workspace"])
def workspace(request, monkeypatch):
    """Whether everything is computed in parts."""
    if request.param != "workspace":
        monkeypatch.setattr(base, "WORKSPACE", 1)
        monkeypatch.setattr(full, "WORKSPACE", 1)


@pytest.mark.parametrize("classes", [[2, 0], [1], [0, 1, 2, 3, 1]])
@pytest.mark.parametrize("kind", KINDS)
def test_margins_equal_the_oracle(kind, classes, workspace):
    model, sigmas = learned(kind, C, A)
    weight = (normal(C, A, seed=1) + 2).requires_grad_()
    expected = oracles.margin_variance(weight, sigmas, classes)
    leaves = (weight, *model.parameters())
    assert_same_with_gradients(model.margins(weight, torch.tensor(classes)), expected, leaves)
    by_products = Covariance.margins(model, weight, torch.tensor(classes))
    assert_same_with_gradients(by_products, expected, leaves)


def test_margins_with_more_features_than_are_multiplied_one_by_one(monkeypatch):
    monkeypatch.setattr(full, "ONE_BY_ONE_FROM", 3)
    model, sigmas = learned("full", C, A)
    weight = normal(C, A, seed=1).requires_grad_()
    expected = oracles.margin_variance(weight, sigmas, [3, 1, 0])
    assert_same_with_gradients(model.margins(weight, torch.tensor([3, 1, 0])), expected, (weight,))


@pytest.mark.parametrize("kind", KINDS)
def test_products_and_matrices_equal_the_oracle(kind, workspace):
    model, sigmas = learned(kind, C, A)
    rows, labels = normal(9, A, seed=1).requires_grad_(), integers(C, 9, seed=2)
    expected = torch.stack([row @ sigmas[y] for row, y in zip(rows, labels.tolist(), strict=True)])
    leaves = (rows, *model.parameters())
    assert_same_with_gradients(model.product(rows, Groups.of(labels, C)), expected, leaves)
    repeated = torch.stack([row @ sigmas[y] for row, y in zip(rows[:8], [3, 3, 3, 3, 0, 0, 0, 0], strict=True)])
    assert_same_with_gradients(model.product(rows[:8], Groups.equal(torch.tensor([3, 0]), 4)), repeated, leaves)
    assert_matrices_close(model, sigmas.detach())


@pytest.mark.parametrize("kind", ["full", "diagonal", "within", "low_rank", "identity"])
def test_in_float32_a_large_common_part_of_the_weights_does_not_matter(kind):
    model, sigmas = learned(kind, C, A)
    weight = normal(C, A, seed=1)
    expected = oracles.margin_variance(weight, sigmas, [0, 1, 2, 3])
    margins = model.float().margins((weight + 1000).float(), torch.arange(C))
    torch.testing.assert_close(margins.double(), expected, rtol=2e-3, atol=2e-3)
    assert margins.min() >= 0
    torch.testing.assert_close(margins.diagonal(), torch.zeros(C), rtol=0, atol=0)


def test_statistics_may_move_between_a_forward_and_its_backward():
    model, sigmas = learned("full", C, A)
    weight = normal(C, A, seed=1).requires_grad_()
    margins = model.margins(weight, torch.arange(C))
    expected = oracles.margin_variance(weight, sigmas, list(range(C)))
    model.update(*stream())
    assert_same_with_gradients(margins, expected, (weight,))


@pytest.mark.parametrize(("kind", "bound"), [("full", 2), ("diagonal", 0.25), ("low_rank", 2.1)])
def test_margins_make_no_table_of_rows_times_classes_times_features(kind, bound, monkeypatch):
    classes, dim = 40, 64
    monkeypatch.setattr(base, "WORKSPACE", classes * dim * 2)
    monkeypatch.setattr(full, "WORKSPACE", classes * dim * 2)
    model = covariance.create(kind, classes, dim, **({"rank": 4} if kind == "low_rank" else {}))
    model.update(normal(80, dim, seed=1, dtype=torch.float32), torch.arange(80) % classes)
    weight = normal(classes, dim, seed=2, dtype=torch.float32).requires_grad_()
    with LargestTensor([weight, *model.buffers()]) as watch:
        model.margins(weight, torch.arange(classes)).sum().backward()
    assert watch.largest <= 4 * max(bound * classes * dim, 2 * dim * dim) + 4 * classes**2, watch.where


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_device_updates_margins_and_products_are_those_of_the_host(kind, rows, workspace):
    model, there = (covariance_model(kind, 8, A) for _ in range(2))
    weight, x, labels = normal(8, A, seed=1), normal(rows, A, seed=2), integers(8, rows, seed=3)
    batches = [(normal(n, A, seed=n) + 1, integers(8, n, seed=n)) for n in (30, 5)]
    with pretend_accelerator.PretendAccelerator() as accelerator:
        there.to("pretend")
        move = pretend_accelerator.on_pretend
        for batch in batches:
            model.update(*batch)
            accelerator.clear()
            there.update(*map(move, batch))
            assert len(accelerator.waits) <= (kind == "low_rank")
        accelerator.clear()
        margins = there.margins(move(weight), move(labels))
        product = there.product(move(x), Groups.of(move(labels), 8))
        assert accelerator.waits == []
        torch.testing.assert_close(margins.detach().cpu(), model.margins(weight, labels).detach())
        torch.testing.assert_close(product.detach().cpu(), model.product(x, Groups.of(labels, 8)).detach())


# -- low rank --------------------------------------------------------------------------------------------------------


@given(order=orders(), rank=st.integers(1, 4))
def test_low_rank_has_exact_variances_and_the_error_bound_of_its_sketch(order, rank):
    seed, sizes = order
    features, targets = stream(sum(sizes), seed=seed, mean=5.0)
    model = covariance_model("low_rank", C, A, rank=rank)
    for part in torch.arange(len(features)).split(sizes):
        model.update(features[part], targets[part])
    exact, count = oracles.batch_covariance(features, targets, C), torch.bincount(targets, minlength=C)
    diagonal = matrices_of(model).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal, exact.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-9)
    for c in range(C):
        energy = float(exact[c].trace()) * int(count[c])
        errors = torch.linalg.eigvalsh(exact[c] * count[c] - model.sketch[c].t() @ model.sketch[c])
        assert float(errors.min()) >= -1e-9 * energy - 1e-9
        assert float(errors.max()) <= energy / (rank + 1) + 1e-9 * energy + 1e-9
    assert model.fill.max() <= 2 * rank


def test_low_rank_is_exact_while_the_rows_fit_and_near_where_few_directions_carry_all():
    few = normal(200, 2, seed=1) @ normal(2, 12, seed=2)
    model = LowRankCovariance(1, 12, rank=4, dtype=torch.float64)
    for part in few.split(25):
        model.update(part, torch.zeros(len(part), dtype=torch.int64))
    exact = oracles.batch_covariance(few, torch.zeros(200, dtype=torch.int64), 1)[0]
    torch.testing.assert_close(model.covariance(0), exact, rtol=1e-9, atol=1e-9)
    noisy = few + 0.3 * normal(200, 12, seed=3)
    for rank, share in ((2, 0.35), (4, 0.12)):
        model = LowRankCovariance(1, 12, rank=rank, dtype=torch.float64)
        for part in noisy.split(25):
            model.update(part, torch.zeros(len(part), dtype=torch.int64))
        exact = oracles.batch_covariance(noisy, torch.zeros(200, dtype=torch.int64), 1)[0]
        off = exact - torch.diag(exact.diagonal())
        assert float((model.covariance(0) - exact).norm()) < share * float(off.norm())


def test_low_rank_margins_and_products_after_shrinking_are_those_of_its_matrices():
    model = covariance_model("low_rank", C, A, rank=2)
    for seed in range(4):
        model.update(*stream(seed=seed))
    sigmas, weight = matrices_of(model), (normal(C, A, seed=1) + 2).requires_grad_()
    expected = oracles.margin_variance(weight, sigmas, [3, 0, 1])
    assert_same_with_gradients(model.margins(weight, torch.tensor([3, 0, 1])), expected, (weight,))


# -- learned ---------------------------------------------------------------------------------------------------------


def test_the_uncertainty_loss_pulls_gaussians_wider_until_they_have_their_entropy():
    model = covariance.create("learned", 3, 4, rank=2, uncertainty_weight=0.7, scale_0=0.5, dtype=torch.float64)
    with torch.no_grad():
        model.factor.copy_(0.2 * normal(3, 4, 2, seed=1))
    entropies = [
        0.5 * math.log((2 * math.pi * math.e) ** 2 * float(torch.linalg.det(d.t() @ d))) for d in model.factor.detach()
    ]
    margin = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.5))
    assert model.penalty().item() == pytest.approx(0.7 * (margin - sum(entropies) / 3))
    (gradient,) = torch.autograd.grad(model.penalty(), model.factor)
    with torch.no_grad():
        model.factor -= 0.01 * gradient
    assert model.penalty().item() < 0.7 * (margin - sum(entropies) / 3)
    with torch.no_grad():
        model.factor *= 100
    assert model.penalty().item() == pytest.approx(0.0)
    assert covariance.create("learned", 3, 4, uncertainty_margin=2.5).uncertainty_margin == pytest.approx(2.5)


def test_learned_covariances_begin_as_a_multiple_of_the_identity():
    model = covariance.create("learned", 3, 4, scale_0=0.5)
    torch.testing.assert_close(model.covariance(1), 0.25 * torch.eye(4))
    assert model.rank == 4
    assert model.penalty().item() == pytest.approx(0.0, abs=1e-6)


# -- a model of one's own --------------------------------------------------------------------------------------------


class Banded(Covariance):
    """The least that a model has to say: what it adds up, and a product."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, dtype=torch.float64)
        self.whole = nn.ModuleList([covariance_model("full", *sizes)])

    def update(self, features, labels, counted=None):
        super().update(features, labels, counted)
        self.whole[0].update(features, labels, counted)

    def absorb(self, centred, labels, between):
        pass

    def product(self, rows, groups):
        sigmas = torch.stack([torch.tril(torch.triu(self.whole[0].covariance(c), -1), 1) for c in range(C)])
        return (rows.unsqueeze(1) @ sigmas[groups.classes[groups.slot]]).squeeze(1)


def test_a_model_of_ones_own_needs_a_product_and_no_more():
    model, (features, targets) = Banded(C, A), stream(200)
    model.update(features, targets)
    exact = oracles.batch_covariance(features, targets, C)
    expected = torch.stack([torch.tril(torch.triu(m, -1), 1) for m in exact])
    assert_matrices_close(model, expected)
    weight = normal(C, A, seed=1).requires_grad_()
    table = oracles.margin_variance(weight, expected, [2, 0])
    assert_same_with_gradients(model.margins(weight, torch.tensor([2, 0])), table.clamp(min=0), (weight,))
    assert model.sample(torch.tensor([0, 1]), 3).shape == (2, 3, A)
    assert covariance.create(model, C, A, device="cpu") is model
    with pytest.raises(ValueError, match="4 classes and 5 features, not for 4 and 6"):
        covariance.create(model, C, 6)
    with pytest.raises(ValueError, match="memory must be given to the covariance model itself"):
        covariance.create(model, C, A, memory=3)


# -- bad input -------------------------------------------------------------------------------------------------------

BAD = {
    "NaN": (lambda x, y: (x.index_fill(0, torch.tensor([1]), math.nan), y), "finite.* 1 of 3 rows"),
    "infinity": (lambda x, y: (x * math.inf, y), "finite.* 3 of 3 rows"),
    "overflow": (lambda x, y: (x.clamp(min=1) * 1e16, y), "finite"),
    "integer features": (lambda x, y: (x.long(), y), "features must be a floating point tensor"),
    "a list": (lambda x, y: (x.tolist(), y), "features must be .* got a list"),
    "too wide": (lambda x, y: (x.repeat(1, 2), y), r"row of 5 for each of 3 labels, got \(3, 10\)"),
    "too few rows": (lambda x, y: (x[:2], y), "features must have a row"),
    "label too large": (lambda x, y: (x, y + C), r"0\.\.3 or be ignore_index, got 4 .*3 of 3"),
    "negative label": (lambda x, y: (x, y - 1), "got -1 .1 of 3"),
    "labels in floating point": (lambda x, y: (x, y.double()), "integer class indices"),
    "boolean labels": (lambda x, y: (x, y > 0), "integer class indices"),
    "meta": (lambda x, y: (x.to("meta"), y), "features are on meta, targets on cpu"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", ["full", "identity"])
def test_bad_input_is_refused_and_changes_nothing(kind, case):
    model, _ = learned(kind, C, A)
    before = state_of(model)
    change, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        model.update(*change(normal(3, A, seed=1), torch.tensor([0, 1, 2])))
    assert isinstance(caught.value, NonFiniteError) == (case in ("NaN", "infinity", "overflow"))
    assert_same_state(model, before)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("ful", {}, "did you mean 'full'"),
        ("full", {"memory": 0}, "memory must be an integer of at least 1, got 0"),
        ("low_rank", {"rank": 2.5}, "rank must be an integer"),
        ("low_rank", {"rank": True}, "rank must be an integer"),
        ("learned", {"rank": 9}, "rank must be at most feature_dim=5, got 9"),
        ("learned", {"scale_0": 0}, "scale_0 must be a finite number"),
        ("learned", {"uncertainty_weight": -1}, "uncertainty_weight must be a finite number of at least 0"),
    ],
)
def test_bad_settings_are_refused(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        covariance.create(kind, C, A, **settings)


def test_sizes_may_be_floats_that_are_integers():
    model = covariance.create("full", 3.0, 4, memory=10)
    assert (model.num_classes, model.feature_dim) == (3, 4)
    assert isinstance(model.num_classes, int)
    assert "num_classes=3, feature_dim=4, memory=10" in repr(model)
    with pytest.raises(ValueError, match="num_classes must be an integer"):
        covariance.create("full", 0, 4)
