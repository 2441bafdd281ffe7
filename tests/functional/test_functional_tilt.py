"""The search for the tilt: it attains the minimum, never rises above the start, and costs little at any size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from isda.covariance import create
from isda.functional import tilt as search
from isda.functional import tilted_bound
from isda.functional.tables import quadratic_tables
from isda.functional.tilt import find_tilt
from oracles import random_covariances, tilted_value

KINDS = ("full", "diagonal", "low_rank", "shared", "within", "shrunk", "identity", "learned")


def learned(kind: str, num_classes: int, dim: int, seed: int = 0, dtype=torch.float64, rows: int = 6):
    """A covariance model that has seen ``rows`` features of every class."""
    generator = torch.Generator().manual_seed(seed)
    model = create(kind, num_classes, dim, dtype=dtype)
    targets = torch.arange(num_classes).repeat(rows)
    model.update(torch.randn(len(targets), dim, generator=generator, dtype=dtype), targets)
    return model


def batch(num_classes: int, dim: int, n: int, scale: float, seed: int = 1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(num_classes, dim, generator=generator, dtype=dtype)
    logits = torch.randn(n, dim, generator=generator, dtype=dtype) @ weight.t()
    return logits, weight, torch.randint(num_classes, (n,), generator=generator)


def values(logits, weight, matrices, tilts, strength):
    """(N,) F(tilt_i) with the covariance matrices[i], written from its definition."""
    return torch.stack(
        [tilted_value(z, t, weight, m, strength) for z, t, m in zip(logits, tilts, matrices, strict=True)]
    )


def minima(logits, weight, matrices, strength):
    """(N,) min F, by exponentiated gradient ascent of the dual; certified by the value of the dual below it.

    max_s s.c - s'Ks/2 + entropy(s) has the optimum s = softmax(c - K s), and is never above min F. A step of size h
    moves log s towards c - K s by h; h below 1 / (1 + max K) never overshoots. It knows nothing of Newton steps, few
    classes or temperatures.
    """
    weight = weight - weight.mean(0)
    forms = strength * weight @ matrices @ weight.t()
    fixed = logits + forms.diagonal(dim1=1, dim2=2) / 2
    size = (1 / (1 + torch.linalg.matrix_norm(forms, ord=2))).unsqueeze(1)
    share = torch.log_softmax(torch.zeros_like(fixed), 1)
    for _ in range(200_000):
        target = fixed - torch.bmm(forms, share.exp().unsqueeze(2)).squeeze(2)
        step = torch.log_softmax((1 - size) * share + size * target, 1) - share
        share = share + step
        if step.abs().mul(share.exp()).max() < 1e-9 * size.min():
            break
    share = share.exp()
    product = torch.bmm(forms, share.unsqueeze(2)).squeeze(2)
    above = torch.logsumexp(fixed - product, 1) + (share * product).sum(1) / 2
    below = (share * fixed).sum(1) - (share * product).sum(1) / 2 + torch.special.entr(share).sum(1)
    assert (above - below).max() < 1e-4
    return below


def matrices_of(model, targets):
    return torch.stack([model.covariance(int(c)).detach() for c in targets])


@pytest.mark.parametrize("start", ["one-hot", "prediction"])
@pytest.mark.parametrize(
    ("kind", "num_classes", "dim"),
    [("full", 10, 12), ("full", 40, 48), ("full", 40, 12)] + [(kind, 40, 12) for kind in KINDS[1:]],
)
def test_attains_the_minimum_within_a_hundredth_of_a_nat(kind, num_classes, dim, start):
    model = learned(kind, num_classes, dim)
    logits, weight, targets = batch(num_classes, dim, 24, scale=1.0)
    tables = quadratic_tables(weight, model, model.groups(targets))
    origin = targets if start == "one-hot" else torch.softmax(logits, 1)
    tilts = find_tilt(logits, tables, origin, 0.7)
    assert (tilts >= 0).all()
    torch.testing.assert_close(tilts.sum(1), torch.ones(24).double())
    matrices = matrices_of(model, targets)
    least = minima(logits, weight, matrices, 0.7)
    gap = values(logits, weight, matrices, tilts, 0.7) - least
    assert gap.min() > -1e-9
    assert gap.quantile(0.95) < 0.01
    first = find_tilt(logits, tables, origin, 0.7, steps=0)
    distance = values(logits, weight, matrices, first, 0.7) - least
    assert distance.median() > 0.05 or start == "prediction"  # there was something to find
    assert (gap <= distance + 1e-12).all()


def hard_batch(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(10, 32, generator=generator, dtype=torch.float64)
    covariances = random_covariances(10, 32, generator=generator)
    targets = torch.randint(10, (128,), generator=generator)
    logits = torch.randn(128, 32, generator=generator, dtype=torch.float64) @ weight.t()
    order = torch.randperm(32, generator=generator)
    return logits.to(dtype), targets, weight.to(dtype), covariances.to(dtype), order


def with_covariances(covariances):
    model = create("full", *covariances.shape[:2], dtype=covariances.dtype)
    model.scatter.copy_(covariances)
    model.count.fill_(1)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_margins_vary_much_the_minimum_is_found_and_does_not_depend_on_the_order_of_features(dtype):
    logits, targets, weight, covariances, order = hard_batch(dtype, seed=0)
    loss = tilted_bound(logits, targets, weight, with_covariances(covariances), 0.4)
    swapped = tilted_bound(logits, targets, weight[:, order], with_covariances(covariances[:, order][:, :, order]), 0.4)
    assert (loss - swapped).abs().max() < (1e-3 if dtype == torch.float32 else 1e-9)
    exact = logits.double(), weight.double(), covariances.double()[targets]
    least = minima(*exact, 0.4)
    published = values(*exact, F.one_hot(targets, 10).double(), 0.4) - least
    gap = loss.double() + logits.gather(1, targets.unsqueeze(1)).squeeze(1).double() - least
    assert published.median() > 5
    assert (gap / published).quantile(0.95) < 1e-3
    assert gap.abs().quantile(0.95) < 1e-3


@pytest.mark.parametrize("num_classes", [5, 16, 17, 60])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_float32_is_finite_and_never_above_the_start_at_any_scale(num_classes, scale):
    model = learned("full", num_classes, 8, dtype=torch.float32)
    logits, weight, targets = batch(num_classes, 8, 32, scale, dtype=torch.float32)
    tables = quadratic_tables(weight, model, model.groups(targets))
    exact, matrices = (logits.double(), weight.double()), matrices_of(model, targets).double()
    published = values(*exact, matrices, F.one_hot(targets, num_classes).double(), 5.0)
    for steps in (1, 2, 5, 20):
        tilts = find_tilt(logits, tables, targets, 5.0, steps)
        assert torch.isfinite(tilts).all()
        found = values(*exact, matrices, tilts.double(), 5.0)
        assert (found <= published * (1 + 1e-5) + 1e-6).all()


def test_classes_and_their_one_hot_rows_start_the_same_search():
    for num_classes in (6, 30):
        model = learned("full", num_classes, 40)
        logits, weight, targets = batch(num_classes, 40, 9, 0.5)
        tables = quadratic_tables(weight, model, model.groups(targets))
        rows = F.one_hot(targets, num_classes).double()
        assert torch.equal(find_tilt(logits, tables, targets, 1.0, steps=0), rows)
        torch.testing.assert_close(find_tilt(logits, tables, targets, 1.0), find_tilt(logits, tables, rows, 1.0))


def tables_by(route, weight, model, targets, monkeypatch):
    """Tables per class, products per row, or the latter with W Sigma known, which are differentiated once."""
    monkeypatch.setattr(model, "prefers_gram", lambda rows, matrices: route == "tables")
    return quadratic_tables(weight, model, model.groups(targets), once=route == "known")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [3, 50])
@pytest.mark.parametrize("route", ["tables", "rows", "known"])
def test_tables_are_those_of_the_quadratic_forms(kind, dim, route, monkeypatch):
    model = learned(kind, 20, dim)
    _, weight, targets = batch(20, dim, 7, 1.0)
    tables = tables_by(route, weight, model, targets, monkeypatch)
    few = torch.stack([torch.randperm(20)[:4] for _ in targets])
    centred, weights = weight - weight.mean(0), torch.rand(7, 4, dtype=torch.float64)
    forms = centred @ matrices_of(model, targets) @ centred.t()
    part, shares, share = slice(2, 6), torch.rand(7, 20, dtype=torch.float64), torch.rand(7, 1, dtype=torch.float64)
    pool = tables.pool(shares)
    table, bordered = tables.restricted(few[part], part), tables.restricted(few[part], part, pool)
    product, mixed = tables.product_of_few(few, weights)[0], tables.product_with_pool(few, weights, pool, share)[0]
    close = {"rtol": 1e-9, "atol": 1e-9}
    for i, k in enumerate(forms):
        torch.testing.assert_close(tables.diagonal[i], k.diagonal(), **close)
        torch.testing.assert_close(product[i], k[:, few[i]] @ weights[i], **close)
        torch.testing.assert_close(mixed[i], k[:, few[i]] @ weights[i] + share[i] * (k @ shares[i]), **close)
        if part.start <= i < part.stop:
            chosen = torch.cat([torch.eye(20, dtype=torch.float64)[few[i]], shares[i : i + 1]])
            torch.testing.assert_close(table[i - part.start], k[few[i]][:, few[i]], **close)
            torch.testing.assert_close(bordered[i - part.start], chosen @ k @ chosen.t(), **close)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", ["tables", "rows", "known"])
def test_variances_of_a_tilt_whose_memo_is_known_have_the_gradient_of_the_definition(kind, route, monkeypatch):
    model = learned(kind, 30, 12)
    logits, weight, targets = batch(30, 12, 7, 1.0)
    weight.requires_grad_()
    tables = tables_by(route, weight, model, targets, monkeypatch)
    found = search.search_tilt(logits, tables, targets, 1.0)
    assert (found.memo is None) == (route == "tables")
    variance = tables.variance(found.tilt, found.memo)
    difference = weight - (found.tilt @ weight).unsqueeze(1)
    expected = (difference @ matrices_of(model, targets) * difference).sum(2)
    torch.testing.assert_close(variance, expected, rtol=1e-9, atol=1e-9)
    pull = torch.rand_like(expected)
    mine, theirs = (torch.autograd.grad(value, weight, pull)[0] for value in (variance, expected))
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(tables.variance(found.tilt), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_classes", [12, 40])
def test_rows_in_chunks_give_the_same_tilts(monkeypatch, num_classes):
    model = learned("full", num_classes, 10)
    logits, weight, targets = batch(num_classes, 10, 50, 1.0)
    tables = quadratic_tables(weight, model, model.groups(targets))
    whole = find_tilt(logits, tables, targets, 1.0)
    monkeypatch.setattr("isda.functional.grouping.WORKSPACE_BYTES", 200_000)
    torch.testing.assert_close(find_tilt(logits, tables, targets, 1.0), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("start", ["one-hot", "prediction"])
@pytest.mark.parametrize("num_classes", [12, 40, 60])
def test_a_row_does_not_depend_on_the_others(num_classes, start):
    model = learned("full", num_classes, 10)
    logits, weight, targets = batch(num_classes, 10, 12, 1.0)
    logits = logits * torch.linspace(0.1, 3, 12).double().unsqueeze(1)

    def found(part: slice) -> torch.Tensor:
        tables = quadratic_tables(weight, model, model.groups(targets[part]))
        origin = targets[part] if start == "one-hot" else torch.softmax(logits[part], 1)
        return find_tilt(logits[part], tables, origin, 1.0)

    together = found(slice(None))
    for i in range(12):
        torch.testing.assert_close(found(slice(i, i + 1))[0], together[i], rtol=1e-7, atol=1e-9)


VIEWS = {"view", "unsqueeze", "squeeze", "expand", "slice", "select", "t", "transpose", "detach", "diagonal", "alias"}
WAITS = {"_local_scalar_dense", "nonzero", "unique", "_unique2", "masked_select", "equal"}


class Launches(TorchDispatchMode):
    """Counts operations other than views, and refuses what would make a device wait."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        assert name not in WAITS
        if name == "index":
            assert all(i is None or i.dtype != torch.bool for i in args[1])
        self.count += name not in VIEWS
        return function(*args, **(kwargs or {}))


def launches(kind, num_classes, dim, n):
    model = learned(kind, num_classes, dim, dtype=torch.float32, rows=2)
    logits, weight, targets = batch(num_classes, dim, n, 0.1, dtype=torch.float32)
    tables = quadratic_tables(weight, model, model.groups(targets), once=True)
    with Launches() as counter:
        find_tilt(logits, tables, targets, 0.5)
    return counter.count


def test_a_search_waits_for_nothing_and_launches_as_much_at_any_size():
    few, many = launches("diagonal", 10, 16, 8), launches("diagonal", 40, 16, 64)
    assert few < 165
    assert many < 230
    assert launches("diagonal", 16, 16, 300) <= few
    assert launches("diagonal", 400, 32, 500) <= many
    assert launches("full", 40, 64, 64) < 230  # rows of W Sigma


def test_the_defaults_are_enough():
    model = learned("full", 40, 48)
    logits, weight, targets = batch(40, 48, 32, 0.5)
    tables = quadratic_tables(weight, model, model.groups(targets))
    matrices = matrices_of(model, targets)
    short, long = (
        values(logits, weight, matrices, find_tilt(logits, tables, targets, 0.5, s), 0.5)
        for s in (search.TILT_STEPS, 50)
    )
    assert (short - long).abs().quantile(0.95) < 1e-3
