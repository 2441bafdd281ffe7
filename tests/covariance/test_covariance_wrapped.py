"""Covariances made from others: mixed by confusions, stretched by trained scales; against loops from the equations."""

import copy

import pytest
import torch

from isda import covariance
from isda.covariance import ConfusionCovariance, FullCovariance, ScaledCovariance, create
from isda.functional import grouping
from oracles import margin_variance

C, A = 4, 3
BASES = ("full", "diagonal", "low_rank", "shared", "learned")


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fed(name):
    model = create(name, C, A, dtype=torch.float64, **({"rank": 2} if name in ("low_rank", "learned") else {}))
    model.update(random(30, A, seed=1) * torch.tensor([1.0, 2.0, 0.5]), torch.arange(30) % (C - 1))
    if name == "learned":
        with torch.no_grad():
            model.factor.copy_(random(*model.factor.shape, seed=2))
    return model


def mixed(name):
    model = ConfusionCovariance(fed(name), memory=0.5)
    model.observe(random(30, C, seed=3), torch.arange(30) % C)
    return model


def expected(model):
    """(C, A, A) the matrices that the equations ask for."""
    base = [model.base.covariance(k).detach() for k in range(C)]
    if isinstance(model, ConfusionCovariance):
        return torch.stack([sum(model.graph[y, k] * base[k] for k in range(C)) for y in range(C)])
    scales = [torch.diag(row.exp()) for row in model.log_scale.detach()]
    return torch.stack([scale @ matrix @ scale for scale, matrix in zip(scales, base, strict=True)])


def scaled(name):
    model = ScaledCovariance(fed(name))
    with torch.no_grad():
        model.log_scale.copy_(0.3 * random(C, A, seed=4))
    return model


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("make", [mixed, scaled])
def test_every_form_is_that_of_the_matrices(make, name):
    model, weight = make(name), random(C, A, seed=5).requires_grad_()
    matrices, classes = expected(model), torch.tensor([3, 0, 0, 2])
    for index in range(C):
        torch.testing.assert_close(model.covariance(index), matrices[index], atol=1e-11, rtol=0, check_dtype=False)
    found = model.margin_variance(weight, classes)
    reference = margin_variance(weight, matrices, classes.tolist())
    torch.testing.assert_close(found, reference, atol=1e-10, rtol=0)
    assert float(found.detach().gather(1, classes.unsqueeze(1)).abs().max()) == 0
    pull = random(4, C, seed=6)
    torch.testing.assert_close(
        torch.autograd.grad(found, weight, pull)[0], torch.autograd.grad(reference, weight, pull)[0], atol=1e-9, rtol=0
    )
    plain = weight.detach()
    torch.testing.assert_close(model.gram(plain, classes), plain @ matrices[classes] @ plain.t(), atol=1e-10, rtol=0)
    torch.testing.assert_close(
        model.variances(plain, classes),
        torch.einsum("ja,kab,jb->kj", plain, matrices[classes], plain),
        atol=1e-10,
        rtol=0,
    )
    rows = random(4, A, seed=7)
    torch.testing.assert_close(
        model.product(rows, classes), torch.einsum("kab,kb->ka", matrices[classes], rows), atol=1e-10, rtol=0
    )


def test_tables_that_do_not_fit_the_workspace_are_made_in_parts(monkeypatch):
    whole, weight = mixed("full"), random(C, A, seed=5).requires_grad_()
    classes, pull = torch.arange(C), random(C, C, seed=6)
    one = whole.margin_variance(weight, classes)
    (slope,) = torch.autograd.grad(one, weight, pull)
    monkeypatch.setattr(grouping, "WORKSPACE_BYTES", 3 * C * C * 8)
    two = whole.margin_variance(weight, classes)
    torch.testing.assert_close(two, one, atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(two, weight, pull)[0], slope, atol=1e-12, rtol=0)


def test_scales_are_differentiable_twice():
    model, weight = scaled("full"), random(C, A, seed=5).requires_grad_()
    classes = torch.tensor([2, 0])

    def table(weight, log_scale):
        stretched = [torch.diag(row.exp()) for row in log_scale]
        matrices = torch.stack([s @ model.base.covariance(k) @ s for k, s in enumerate(stretched)])
        return margin_variance(weight, matrices, classes.tolist())

    def second(values, inputs):
        (first,) = torch.autograd.grad(values.square().sum(), inputs[0], create_graph=True)
        return torch.autograd.grad(first.sin().sum(), inputs)

    copied = [weight.detach().clone().requires_grad_(), model.log_scale.detach().clone().requires_grad_()]
    found = second(model.margin_variance(weight, classes), [weight, model.log_scale])
    for one, other in zip(found, second(table(*copied), copied), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_confusions_are_running_means_of_predictions():
    model = ConfusionCovariance(FullCovariance(C, A, dtype=torch.float64), memory=0.7)
    expected_graph = torch.eye(C, dtype=torch.float64)
    seen = set()
    for seed in range(3):
        logits, targets = (
            random(7, C, seed=seed),
            torch.randint(C - 1, (7,), generator=torch.Generator().manual_seed(seed)),
        )
        mask = torch.tensor([True] * 6 + [False])
        model.observe(logits, targets, mask)
        for y in range(C):
            rows = [
                torch.softmax(row, 0)
                for row, label, kept in zip(logits, targets, mask, strict=True)
                if kept and label == y
            ]
            if rows:
                mean = sum(rows) / len(rows)
                expected_graph[y] = mean if y not in seen else 0.7 * expected_graph[y] + 0.3 * mean
                seen.add(y)
    torch.testing.assert_close(model.graph, expected_graph, atol=1e-12, rtol=0)
    torch.testing.assert_close(model.graph.sum(1), torch.ones(C, dtype=torch.float64))
    assert model.known.tolist() == [y in seen for y in range(C)]
    before = model.graph.clone()
    model.observe(torch.full((2, C), torch.nan), torch.tensor([0, 1]))
    model.observe(torch.zeros(1, C), torch.tensor([C]))
    assert torch.equal(model.graph, before)


def test_bad_rows_change_nothing_and_a_state_dict_holds_everything():
    model = mixed("full")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="features must be finite"):
        model.update(torch.full((2, A), torch.nan), torch.tensor([0, 1]))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    twin = ConfusionCovariance(FullCovariance(C, A, dtype=torch.float64))
    twin.load_state_dict(before)
    weight = random(C, A, seed=9)
    assert torch.equal(twin.margin_variance(weight, [0, 3]), model.margin_variance(weight, [0, 3]))
    model.reset()
    assert torch.equal(model.graph, torch.eye(C, dtype=torch.float64))
    assert not model.count.any()


def test_merging_weighs_confusions_by_counts():
    one, other = (ConfusionCovariance(fed("full"), memory=0.5) for _ in range(2))
    other.base.update(random(30, A, seed=8), torch.zeros(30, dtype=torch.int64))
    other.count.copy_(other.base.count)
    one.observe(torch.zeros(1, C), torch.tensor([0]))
    logits = random(2, C, seed=9)
    other.observe(logits, torch.tensor([0, 3]))
    counts = [float(model.count[0]) for model in (one, other)]
    theirs, mine = torch.softmax(logits[0], 0), torch.full((C,), 1 / C, dtype=torch.float64)
    one.merge(other)
    torch.testing.assert_close(one.graph[0], (counts[0] * mine + counts[1] * theirs) / sum(counts))
    torch.testing.assert_close(one.graph[3], torch.softmax(logits[1], 0))
    assert float(one.count[0]) == sum(counts)


def test_the_names_are_public():
    assert {"ConfusionCovariance", "ScaledCovariance"} <= set(covariance.__all__)


@pytest.mark.parametrize("other", [FullCovariance(3, 4), ScaledCovariance(FullCovariance(3, 4)), None])
def test_merging_something_else_is_refused(other):
    model = ConfusionCovariance(FullCovariance(3, 4))
    with pytest.raises(ValueError, match="other must be a ConfusionCovariance of 3 classes x 4 features, got"):
        model.merge(other)


@pytest.mark.parametrize("make", [mixed, scaled])
def test_a_wrapped_model_is_converted_with_what_it_wraps(make):
    model = make("full").float()
    assert model.base.dtype == model.dtype == torch.float32
    assert model.half().base.scatter.dtype == torch.float32, "statistics keep at least float32"
