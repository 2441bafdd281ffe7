"""ISDALoss with shifts and offsets against loops over the closed form; without them nothing changes."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from loss_oracles import bilinear, bound_rows, class_covariances, jensen_tilts, library_tilt, normal, one_hot, row_loss

import pretend_accelerator
from isda import ISDABCELoss, ISDALoss
from isda.covariance import ConfusionCovariance, FullCovariance, create
from isda.losses import ExplicitLoss
from isda.losses.long_tail import ConfusionShift, LDAMMargins, LogitAdjustment, MeanShift, Offset

C, A, N = 4, 5, 9
COUNTS = [50, 20, 6, 2]
OFFSETS = {"logit-adjustment": LogitAdjustment(COUNTS, tau=1.3), "ldam": LDAMMargins(COUNTS, 0.5, scale=3.0)}
STRENGTH, ALPHA = 0.8, 0.6


class Random(Offset):
    """Any table with a diagonal of zeros."""

    num_classes = C

    def __init__(self):
        super().__init__()
        self.register_buffer("table", normal(C, C, seed=99) * (1 - torch.eye(C)))

    def rows(self, classes):
        return self.table[classes]


class Given(MeanShift):
    """Any shifts."""

    def vectors(self, covariance):
        return normal(C, A, seed=98).to(covariance.mean)


def offset_of(name):
    return Random() if name == "random" else copy.deepcopy(OFFSETS[name]).double()


def expected_offset(name, y, j):
    if name == "logit-adjustment":
        return 1.3 * math.log(COUNTS[j] / COUNTS[y])
    if name == "ldam":
        return 0.0 if y == j else 3.0 * 0.5 * (COUNTS[y] / min(COUNTS)) ** -0.25
    return float(Random().table[y, j])


def problem():
    features, targets = normal(N, A, seed=1) + 2, torch.tensor([0, 1, 2, 0, 0, 1, 2, 0, 3])
    return features, targets, normal(N, C, seed=2).requires_grad_(), (0.7 * normal(C, A, seed=3)).requires_grad_()


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("offset", [*OFFSETS, "random"])
def test_loss_and_gradients_are_those_of_the_closed_form(offset, bound):
    """z_j + lambda/2 dw' Sigma dw + alpha dw' delta + o_yj, by loops."""
    features, targets, logits, weight = problem()
    criterion = ISDALoss(
        C,
        A,
        lambda_0=STRENGTH,
        bound=bound,
        offset=offset_of(offset),
        shift=Given(ALPHA),
        dtype=torch.float64,
        schedule="constant",
    )
    loss = criterion(logits, targets, features=features, weight=weight)
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (logits, weight)]
    sigmas, delta = class_covariances("full", features, targets, C), normal(C, A, seed=98)
    moved = torch.stack(
        [
            torch.stack(
                [
                    inputs[0][i, j] + ALPHA * (inputs[1][j] - inputs[1][y]) @ delta[y] + expected_offset(offset, y, j)
                    for j in range(C)
                ]
            )
            for i, y in enumerate(targets.tolist())
        ]
    )
    tilts = jensen_tilts(targets, C)
    if bound == "tilted":
        tilts = library_tilt(criterion, moved.detach(), targets, weight.detach(), STRENGTH)
    augmented = bound_rows(moved, inputs[1], sigmas, targets, tilts, STRENGTH)
    losses = [row_loss(augmented[i], moved[i], one_hot(int(y), C)) for i, y in enumerate(targets)]
    expected = sum(losses) / N
    tolerance = 1e-10
    torch.testing.assert_close(loss, expected, atol=tolerance, rtol=0)
    for one, other in zip(
        torch.autograd.grad(loss, [logits, weight]), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)
    if bound == "jensen":
        found = criterion.augmented_logits(logits, targets, weight=weight, strength=STRENGTH)
        torch.testing.assert_close(found, augmented, atol=tolerance, rtol=0)


def test_alpha_grows_with_the_strength_and_is_constant_where_there_is_none():
    features, targets, logits, weight = problem()
    plain = {"features": features, "weight": weight}
    growing = ISDALoss(C, A, lambda_0=0.5, total_steps=4, shift=Given(ALPHA), dtype=torch.float64)
    assert growing(logits, targets, **plain).item() == F.cross_entropy(logits, targets).item()
    alone = ISDALoss(C, A, lambda_0=0.0, shift=Given(ALPHA), dtype=torch.float64)
    delta = normal(C, A, seed=98)
    moved = logits + ALPHA * ((weight - weight[targets].unsqueeze(1)) * delta[targets].unsqueeze(1)).sum(-1)
    torch.testing.assert_close(alone(logits, targets, **plain), F.cross_entropy(moved, targets))
    with pytest.raises(ValueError, match="features and weight must be given"):
        alone(logits, targets)
    quarter = ISDALoss(C, A, lambda_0=0.5, shift=Given(ALPHA / 4), dtype=torch.float64, schedule="constant")
    quarter.covariance.update(features, targets)
    one = growing.augmented_logits(logits, targets, weight=weight)  # a step of four is over
    two = quarter.augmented_logits(logits, targets, weight=weight, strength=0.125)
    assert not torch.allclose(one, two)
    full = ISDALoss(C, A, lambda_0=0.125, shift=Given(ALPHA / 4), dtype=torch.float64, schedule="constant")
    full.covariance.update(features, targets)
    torch.testing.assert_close(one, full.augmented_logits(logits, targets, weight=weight))


def test_an_offset_alone_needs_neither_features_nor_weight():
    _, targets, logits, _ = problem()
    criterion = ISDALoss(C, A, lambda_0=0.0, covariance="identity", offset=LogitAdjustment(COUNTS), dtype=torch.float64)
    prior = torch.tensor(COUNTS, dtype=torch.float64).log()
    torch.testing.assert_close(criterion(logits, targets), F.cross_entropy(logits + prior, targets), atol=1e-6, rtol=0)
    targets[2] = -100
    torch.testing.assert_close(criterion(logits, targets), F.cross_entropy(logits + prior, targets), atol=1e-6, rtol=0)
    assert criterion.eval()(logits, targets).item() == F.cross_entropy(logits, targets).item()


def test_without_providers_nothing_changes_and_in_eval_mode_they_are_silent():
    features, targets, logits, weight = problem()
    plain, zero = (ISDALoss(C, A, lambda_0=0.5, dtype=torch.float64, schedule="constant") for _ in range(2))
    assert plain.state_dict().keys() == zero.state_dict().keys()
    assert not any("offset." in name or "shift" in name for name in plain.state_dict())
    given = ISDALoss(
        C, A, lambda_0=0.5, offset=LogitAdjustment(COUNTS, tau=0.0), dtype=torch.float64, schedule="constant"
    )
    losses = [one(logits, targets, features=features, weight=weight).item() for one in (plain, given)]
    assert losses[0] == losses[1]
    adjusted = ISDALoss(
        C, A, offset=LogitAdjustment(COUNTS), shift=Given(1.0), dtype=torch.float64, schedule="constant"
    ).eval()
    assert adjusted(logits, targets).item() == F.cross_entropy(logits, targets).item()


def test_ignored_rows_and_soft_targets_and_weights():
    features, targets, logits, weight = problem()
    offset, class_weight = Random(), torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    criterion = ISDALoss(C, A, 0.5, offset=offset, class_weight=class_weight, dtype=torch.float64, schedule="constant")
    targets[4] = -100
    loss = criterion(logits, targets, features=features, weight=weight)
    kept = targets != -100
    alone = ISDALoss(C, A, 0.5, offset=offset, class_weight=class_weight, dtype=torch.float64, schedule="constant")
    expected = alone(logits[kept], targets[kept], features=features[kept], weight=weight)
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=0)
    unchanged = criterion.augmented_logits(logits, targets, weight=weight)[4]
    assert torch.equal(unchanged, logits[4])
    shares = torch.softmax(normal(N, C, seed=5), 1)
    soft = ISDALoss(C, A, 0.0, offset=offset, dtype=torch.float64)(logits, shares, features=features, weight=weight)
    moved = logits + offset.rows(shares.argmax(1))
    torch.testing.assert_close(soft, F.cross_entropy(moved, shares), atol=1e-12, rtol=0)


def test_pixels_whose_labels_are_finer_than_the_features():
    """The offsets of the coarse labels are brought to the size of the logits, as variances are."""
    features, logits = normal(1, A, 2, 3, seed=6), normal(1, C, 2, 3, seed=7)
    targets = torch.randint(C, (1, 4, 6), generator=torch.Generator().manual_seed(8))
    offset = Random()
    criterion = ISDALoss(C, A, lambda_0=0.0, offset=offset, dtype=torch.float64)
    loss = criterion(logits, targets, features=features, weight=normal(C, A, seed=9))
    coarse = targets[:, ::2, ::2]
    moved = logits + offset.table[coarse].permute(0, 3, 1, 2)
    torch.testing.assert_close(loss, F.cross_entropy(bilinear(moved, 4, 6), targets), atol=1e-12, rtol=0)


def test_drawn_features_have_the_same_terms():
    """Explicit augmentation with many draws is below the bound and near it."""
    features, targets, logits, weight = problem()
    torch.manual_seed(0)
    settings = {"lambda_0": 0.002, "offset": Random(), "shift": Given(ALPHA), "dtype": torch.float64}
    bound = ISDALoss(C, A, schedule="constant", **settings)(logits, targets, features=features, weight=weight)
    drawn = ExplicitLoss(C, A, samples=4000, schedule="constant", **settings)(
        logits, targets, features=features, weight=weight
    )
    plain = ISDALoss(C, A, lambda_0=0.002, dtype=torch.float64, schedule="constant")(
        logits, targets, features=features, weight=weight
    )
    assert bound.item() - 0.004 < drawn.item() < bound.item() + 0.002
    assert abs(plain.item() - bound.item()) > 0.03


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offset": [1.0] * C}, "offset must be an isda.losses.long_tail.Offset, got list"),
        ({"offset": LogitAdjustment([1, 2])}, "offset must be for 4 classes, got one for 2"),
        ({"shift": 0.5}, "shift must be an isda.losses.long_tail.MeanShift, got float"),
        ({"shift": ConfusionShift(1.0)}, "covariance must be a ConfusionCovariance for a ConfusionShift, got FullCov"),
    ],
)
def test_what_provides_nothing_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ISDALoss(C, A, **settings)


def test_bad_settings_of_providers_are_refused():
    with pytest.raises(ValueError, match="alpha must be a finite number >= 0, got -1"):
        ConfusionShift(-1)
    with pytest.raises(ValueError, match="scale must be a finite number >= 0, got nan"):
        LDAMMargins(COUNTS, scale=math.nan)
    with pytest.raises(ValueError, match=r"memory must be in \[0, 1\), got 1"):
        ConfusionCovariance(FullCovariance(C, A), memory=1)
    with pytest.raises(ValueError, match="base must be of at least 2 classes to be confused, got 1"):
        ConfusionCovariance(FullCovariance(1, A))
    with pytest.raises(ValueError, match="base must be a CovarianceModel, got str"):
        ConfusionCovariance("full")
    with pytest.raises(ValueError, match="ISDABCELoss has no setting 'offset'"):
        ISDABCELoss(C, A, offset=LogitAdjustment(COUNTS), schedule="constant")


def test_offsets_move_the_network_and_the_confusions_are_seen():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, A), torch.nn.ReLU(), torch.nn.Linear(A, C))
    mixed = ConfusionCovariance(create("diagonal", C, A))
    criterion = ISDALoss.attach(
        model, 0.5, covariance=mixed, shift=ConfusionShift(0.5), offset=LogitAdjustment(COUNTS), schedule="constant"
    )
    x, y = torch.randn(20, 6), torch.arange(20) % C
    criterion(model(x), y).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    assert mixed.known.all()
    assert not torch.equal(mixed.graph, torch.eye(C))
    assert {"covariance.graph", "covariance.known", "covariance.base.scatter"} <= criterion.state_dict().keys()


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_a_step_on_a_device_is_the_same_and_waits_for_nothing(bound):
    results = []
    for device in ("cpu", "pretend"):
        with pretend_accelerator.PretendAccelerator() as accelerator:
            place = (lambda t: t) if device == "cpu" else pretend_accelerator.on_pretend
            features, targets, logits, weight = problem()
            mixed = ConfusionCovariance(create("full", C, A, device=device, dtype=torch.float64))
            offset = LogitAdjustment(COUNTS)
            criterion = ISDALoss(
                C,
                A,
                0.5,
                bound=bound,
                covariance=mixed,
                shift=ConfusionShift(),
                offset=offset,
                device=device,
                schedule="constant",
            )
            given = [place(t.detach()).requires_grad_() for t in (logits, weight)]
            for _ in range(3):
                accelerator.clear()
                loss = criterion(given[0], place(targets), features=place(features), weight=given[1])
                gradients = torch.autograd.grad(loss, given)
            waits = list(accelerator.waits)
            results.append([t.detach().cpu() for t in (loss, *gradients, mixed.graph, mixed.base.scatter)])
    assert waits == []
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)
