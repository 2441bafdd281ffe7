"""ISDABCELoss against loops over samples and labels, and what it shares with nn.BCEWithLogitsLoss and ISDALoss."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from loss_oracles import assert_same_state, class_covariances, normal, rows_of, state_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import pretend_accelerator
from isda import ISDABCELoss
from isda.covariance import FullCovariance

N, K, A, LAMBDA = 7, 3, 4, 0.6
BOUNDS = ("jensen", "exact")
COVARIANCES = ("full", "diagonal", "identity", "learned", "low_rank", "shared")
PRESENT, LABEL_WEIGHTS = torch.tensor([2.0, 0.5, 3.0]), torch.tensor([0.3, 1.0, 1.7])
NAN = math.nan


def criterion_for(**settings):
    return ISDABCELoss(K, A, **{"lambda_0": LAMBDA, "dtype": torch.float64, **settings})


def sample(seed=1, dtype=torch.float64, pixels=()):
    """Features, weights and hard labels."""
    features, weight = normal(N, A, *pixels, seed=seed, dtype=dtype), normal(K, A, seed=seed + 1, dtype=dtype)
    targets = (normal(N, K, *pixels, seed=seed + 2) > 0.4).to(dtype)
    return features, weight, targets


def logits_of(features, weight):
    return torch.einsum("na...,ka->nk...", features, weight)


# -- oracle ------------------------------------------------------------------------------------------------------------


def logistic(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def entry(bound, z, q, variance, strength, present=1.0, weight=1.0):
    """The loss of one label of one sample."""
    if bound == "jensen":
        added = strength / 2 * variance
        return weight * (present * q * logistic(added - z) + (1 - q) * logistic(added + z))
    noise = torch.arange(-900, 901, dtype=torch.float64) / 100
    density = 0.01 * torch.exp(-noise.square() / 2) / math.sqrt(2 * math.pi)
    moved = z + (strength * variance).sqrt() * noise
    return weight * (density * (present * q * logistic(-moved) + (1 - q) * logistic(moved))).sum()


def naive(bound, logits, targets, weight, sigma, strength, present=(1.0,) * K, label_weight=(1.0,) * K):
    """(N, K) losses, one by one."""
    variances = [w @ sigma @ w for w in weight]
    return torch.stack(
        [
            torch.stack(
                [entry(bound, row[k], q[k], variances[k], strength, present[k], label_weight[k]) for k in range(K)]
            )
            for row, q in zip(logits, targets, strict=True)
        ]
    )


# -- value -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("covariance", ["full", "diagonal", "identity", "learned", "shared"])
def test_losses_and_gradients_are_those_of_the_loops(covariance, bound):
    criterion = criterion_for(
        covariance=covariance, bound=bound, reduction="none", pos_weight=PRESENT, class_weight=LABEL_WEIGHTS
    )
    settings = {"uncertainty_weight": 0.0} if covariance == "learned" else {}
    if settings:
        criterion.covariance.uncertainty_weight = 0.0
        with torch.no_grad():
            criterion.covariance.factor.copy_(0.5 * normal(1, A, A, seed=9))
    seen = []
    for seed in (1, 11):
        features, weight, targets = sample(seed)
        targets[0] = torch.tensor([0.2, 0.9, 0.5])
        seen.append(features)
        weight.requires_grad_()
        logits = logits_of(features, weight).detach().requires_grad_()
        loss = criterion(logits, targets, features=features, weight=weight)
    factor = criterion.covariance.factor.detach() if settings else None
    kind = "full" if covariance == "shared" else covariance
    (sigma,) = class_covariances(kind, torch.cat(seen), [0] * 2 * N, 1, factor)
    expected = naive(bound, logits, targets, weight, sigma, LAMBDA, PRESENT.double(), LABEL_WEIGHTS.double())
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-9)
    upstream = normal(N, K, seed=5)
    ours = torch.autograd.grad((upstream * loss).sum(), (logits, weight))
    theirs = torch.autograd.grad((upstream * expected).sum(), (logits, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_gradients_are_those_of_differences(covariance, bound):
    criterion = criterion_for(covariance=covariance, bound=bound, lambda_0=0.1, pos_weight=PRESENT)
    features, weight, targets = sample()
    weight = weight / 2
    criterion(logits_of(features, weight), targets, features=features, weight=weight)

    def loss(logits, weight):
        with criterion.held():
            return criterion(logits, targets, features=features, weight=weight)

    inputs = (logits_of(features, weight).requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions_are_those_of_the_labels(reduction):
    features, weight, targets = sample()
    logits = logits_of(features, weight)
    losses = criterion_for(reduction="none")(logits, targets, features=features, weight=weight)
    loss = criterion_for(reduction=reduction)(logits, targets, features=features, weight=weight)
    torch.testing.assert_close(loss, getattr(losses, reduction)())


def test_the_expectation_lies_between_plain_and_jensen_and_is_that_of_moved_features():
    features, weight, targets = sample()
    logits = logits_of(features, weight)
    losses = {}
    for bound in BOUNDS:
        criterion = criterion_for(bound=bound, reduction="none")
        losses[bound] = criterion(logits, targets, features=features, weight=weight)
    plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    assert (plain < losses["exact"]).all()
    assert (losses["exact"] < losses["jensen"]).all()
    generator = torch.Generator().manual_seed(0)
    moved = criterion.covariance.sample(
        torch.zeros(N, dtype=torch.int64), 40_000, features=features, strength=LAMBDA, generator=generator
    )
    draws = F.binary_cross_entropy_with_logits(
        moved @ weight.t(), targets.unsqueeze(1).expand(-1, 40_000, -1), reduction="none"
    )
    error = draws.std(1) / math.sqrt(draws.shape[1])
    assert ((losses["exact"] - draws.mean(1)).abs() < 4.5 * error).all()


@pytest.mark.parametrize("bound", BOUNDS)
def test_pixels_are_rows(bound):
    features, weight, targets = sample(pixels=(2, 3))
    logits = logits_of(features, weight)
    criterion = criterion_for(bound=bound, reduction="none", pos_weight=PRESENT, class_weight=LABEL_WEIGHTS)
    loss = criterion(logits, targets, features=features, weight=weight.view(K, A, 1, 1))
    (sigma,) = class_covariances("full", rows_of(features), [0] * N * 6, 1)
    expected = naive(
        bound, rows_of(logits), rows_of(targets), weight, sigma, LAMBDA, PRESENT.double(), LABEL_WEIGHTS.double()
    )
    torch.testing.assert_close(rows_of(loss), expected, rtol=1e-7, atol=1e-9)
    assert criterion.covariance.count.tolist() == [N * 6]


def test_features_may_be_coarser_than_logits():
    coarse, weight, _ = sample(pixels=(2, 2))
    logits = F.interpolate(logits_of(coarse, weight), scale_factor=2, mode="bilinear")
    targets = (logits > 0).double()
    criterion = criterion_for(reduction="none")
    loss = criterion(logits, targets, features=coarse, weight=weight)
    (sigma,) = class_covariances("full", rows_of(coarse), [0] * N * 4, 1)
    expected = naive("jensen", rows_of(logits), rows_of(targets), weight, sigma, LAMBDA)
    torch.testing.assert_close(rows_of(loss), expected)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_head_of_zeros_gets_finite_gradients(bound):
    features, _, targets = sample()
    weight = torch.zeros(K, A, dtype=torch.float64, requires_grad=True)
    criterion = criterion_for(bound=bound)
    loss = criterion(features @ weight.t(), targets, features=features, weight=weight)
    torch.testing.assert_close(loss.detach(), torch.tensor(math.log(2), dtype=torch.float64))
    loss.backward()
    plain = torch.zeros(K, A, dtype=torch.float64, requires_grad=True)
    F.binary_cross_entropy_with_logits(features @ plain.t(), targets).backward()
    torch.testing.assert_close(weight.grad, plain.grad)


# -- plain binary cross-entropy ----------------------------------------------------------------------------------------


def at_strength_zero(**settings):
    return ISDABCELoss(K, A, lambda_0=0.0, **settings)


def evaluating(**settings):
    criterion = ISDABCELoss(K, A, lambda_0=3.0, **settings)
    features, weight, targets = sample(20, torch.float32)
    criterion(logits_of(features, weight), targets, features=features, weight=weight)
    return criterion.eval()


@pytest.mark.parametrize("make", [at_strength_zero, evaluating])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pixels", [(), (2, 3)])
def test_bits_of_binary_cross_entropy(make, reduction, weighted, pixels):
    features, weight, targets = sample(3, torch.float32, pixels)
    weights = {"pos_weight": PRESENT, "class_weight": LABEL_WEIGHTS} if weighted else {}
    criterion = make(reduction=reduction, **weights)
    along = (-1, *[1] * len(pixels))
    theirs_settings = {"pos_weight": PRESENT.view(along), "weight": LABEL_WEIGHTS.view(along)} if weighted else {}
    ours, theirs = (logits_of(features, weight).requires_grad_() for _ in range(2))
    loss = criterion(ours, targets, features=features, weight=weight)
    expected = nn.BCEWithLogitsLoss(reduction=reduction, **theirs_settings)(theirs, targets)
    assert torch.equal(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_at_lambda_0_zero_features_need_not_be_given():
    features, weight, targets = sample(3, torch.float32)
    logits = logits_of(features, weight)
    assert torch.equal(at_strength_zero()(logits, targets), F.binary_cross_entropy_with_logits(logits, targets))


def test_eval_mode_changes_no_state():
    criterion = evaluating()
    before = state_of(criterion)
    features, weight, targets = sample(5, torch.float32)
    criterion(logits_of(features, weight), targets)
    assert_same_state(criterion, before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_labels_of_any_type(dtype):
    features, weight, targets = sample()
    logits = logits_of(features, weight)
    losses = [
        criterion_for()(logits, labels, features=features, weight=weight) for labels in (targets, targets.to(dtype))
    ]
    assert torch.equal(*losses)
    plain = F.binary_cross_entropy_with_logits(
        logits, targets.to(torch.float32 if dtype.is_floating_point else logits.dtype)
    )
    assert torch.equal(criterion_for().eval()(logits, targets.to(dtype)), plain)


# -- missing labels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [-1.0, NAN, -100.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("mode", [*BOUNDS, "eval"])
def test_missing_labels_cost_nothing_and_their_samples_feed_the_statistics(mode, reduction, missing):
    bound = "jensen" if mode == "eval" else mode
    features, weight, targets = sample()
    logits = logits_of(features, weight).requires_grad_()
    everything = criterion_for(bound=bound, reduction="none").train(mode != "eval")
    losses = everything(logits, targets, features=features, weight=weight)
    absent = torch.zeros(N, K, dtype=torch.bool)
    absent[0], absent[2, 1] = True, True
    criterion = criterion_for(bound=bound, reduction=reduction, ignore_value=missing).train(mode != "eval")
    loss = criterion(logits, targets.masked_fill(absent, missing), features=features, weight=weight)
    left = losses.masked_fill(absent, 0)
    expected = {"none": left, "sum": left.sum(), "mean": left.sum() / (N * K - 4)}[reduction]
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert (gradient[absent] == 0).all()
    assert (gradient[~absent] != 0).all()
    assert torch.equal(criterion.covariance.count, everything.covariance.count)


def test_integer_labels_can_be_missing():
    features, weight, targets = sample()
    targets[1, 1] = -1
    losses = [
        criterion_for(ignore_value=-1)(logits_of(features, weight), labels, features=features, weight=weight)
        for labels in (targets, targets.long())
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_batch_of_missing_labels_costs_nothing(bound):
    features, weight, _ = sample()
    logits = logits_of(features, weight).requires_grad_()
    criterion = criterion_for(bound=bound, ignore_value=NAN)
    loss = criterion(logits, torch.full((N, K), NAN, dtype=torch.float64), features=features, weight=weight)
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


# -- unlabelled samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_consistency_is_the_loss_of_the_own_prediction_and_changes_nothing(bound, reduction):
    features, weight, targets = sample()
    criterion = criterion_for(bound=bound, reduction=reduction, pos_weight=PRESENT)
    criterion(logits_of(features, weight), targets, features=features, weight=weight)
    before = state_of(criterion)
    logits = normal(5, K, seed=8).requires_grad_()
    loss = criterion.consistency(logits, weight=weight, strength=0.4)
    (sigma,) = class_covariances("full", features, [0] * N, 1)
    expected = naive(bound, logits, logits.detach().sigmoid(), weight, sigma, 0.4)
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-9)
    ours, theirs = (torch.autograd.grad(value.sum(), logits)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert_same_state(criterion, before)


# -- in training loops -------------------------------------------------------------------------------------------------


def small_model(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, A), nn.Tanh(), nn.Linear(A, K)).to(dtype)


@pytest.mark.parametrize("bound", BOUNDS)
def test_attached_it_needs_logits_and_targets_only(bound):
    model, (_, _, targets) = small_model(), sample()
    images = normal(N, 5, seed=4)
    by_hand = criterion_for(bound=bound, lambda_0=0.5)
    criterion = ISDABCELoss.attach(model, 0.5, bound=bound)
    assert (criterion.num_labels, criterion.feature_dim) == (K, A)
    features = model[:2](images)
    expected = by_hand(model[2](features), targets, features=features, weight=model[2].weight)
    torch.testing.assert_close(criterion(model(images), targets), expected)
    model.eval()
    with torch.no_grad():
        plain = F.binary_cross_entropy_with_logits(model(images), targets)
        assert torch.equal(criterion(model(images), targets), plain)
    criterion.detach()
    assert not model[2]._forward_hooks


def test_the_loss_moves_every_parameter_of_the_network_and_a_learned_covariance():
    model, (_, _, targets) = small_model(), sample()
    criterion = ISDABCELoss.attach(model, 0.5, covariance="learned", bound="exact")
    criterion(model(normal(N, 5, seed=4)), targets).backward()
    parameters = {**dict(model.named_parameters()), **dict(criterion.named_parameters())}
    assert [name for name, parameter in parameters.items() if not parameter.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_penalty_of_a_learned_covariance_weighs_the_same_in_every_reduction(reduction):
    features, weight, targets = sample()
    losses = {}
    for margin in (None, 100.0):
        criterion = criterion_for(covariance="learned", reduction=reduction, uncertainty_margin=margin)
        loss = criterion(logits_of(features, weight), targets, features=features, weight=weight)
        losses[margin] = loss / (N * K) if reduction == "sum" else loss.mean()
    penalty = criterion.covariance.penalty()
    assert penalty > 1
    torch.testing.assert_close(losses[100.0] - losses[None], penalty)


def trained(steps, criterion, model, optimiser, start=0):
    for step in range(start, steps):
        optimiser.zero_grad()
        targets = (normal(N, K, seed=50 + step) > 0).double()
        criterion(model(normal(N, 5, seed=step)), targets).backward()
        optimiser.step()
    return {name: value.clone() for name, value in (*model.state_dict().items(), *criterion.state_dict().items())}


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_resuming_is_exact(covariance):
    def fresh():
        model = small_model()
        criterion = ISDABCELoss.attach(model, 0.5, total_steps=6, covariance=covariance, pos_weight=PRESENT)
        optimiser = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.2, momentum=0.9)
        return criterion, model, optimiser

    straight = trained(6, *fresh())
    parts = fresh()
    trained(3, *parts)
    saved = [copy.deepcopy(part.state_dict()) for part in parts]
    resumed = fresh()
    for part, state in zip(resumed, saved, strict=True):
        part.load_state_dict(state)
    again = trained(6, *resumed, start=3)
    assert again.keys() == straight.keys()
    assert all(torch.equal(value, straight[name]) for name, value in again.items())
    assert resumed[0].strength == 0.5


def test_it_lowers_the_loss_it_is_trained_on():
    model, images = small_model(), normal(40, 5, seed=1)
    targets = (images[:, :K] > 0).double()
    criterion = ISDABCELoss.attach(model, 0.1, total_steps=60, bound="exact")
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    before = F.binary_cross_entropy_with_logits(model(images), targets)
    for _ in range(60):
        optimiser.zero_grad()
        criterion(model(images), targets).backward()
        optimiser.step()
    assert F.binary_cross_entropy_with_logits(model(images), targets) < before / 2


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_counts_once_and_gives_the_same_gradients(use_reentrant):
    def loss_of(model, criterion, images, targets):
        features = model[:2](images)
        return criterion(model[2](features), targets, features=features, weight=model[2].weight)

    _, _, targets = sample()
    gradients, states = [], []
    for checkpointed in (False, True):
        model, criterion = small_model(), criterion_for(bound="exact", total_steps=4)
        for seed in range(3):
            model.zero_grad()
            arguments = (model, criterion, normal(N, 5, seed=seed).requires_grad_(), targets)
            loss = checkpoint(loss_of, *arguments, use_reentrant=use_reentrant) if checkpointed else loss_of(*arguments)
            loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        states.append(criterion.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("bound", BOUNDS)
def test_autocast_leaves_the_loss_in_the_precision_of_the_statistics(bound):
    model, (_, _, targets) = small_model(torch.float32), sample(dtype=torch.float32)
    criterion = ISDABCELoss.attach(model, 0.5, bound=bound)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(normal(N, 5, seed=4, dtype=torch.float32))
        loss = criterion(logits, targets)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    model, outside = small_model(torch.float32), ISDABCELoss(K, A, 0.5, bound=bound)
    outside.load_state_dict(criterion.state_dict())
    with outside.held():
        features = torch.zeros(N, A)
        again = outside(logits.detach().float(), targets, features=features, weight=model[2].weight, strength=0.5)
    torch.testing.assert_close(loss.detach(), again.detach())


# -- off the CPU -------------------------------------------------------------------------------------------------------


def last_step(covariance, bound, missing, device=None):
    """The last of a few training steps; on the pretend device if one is given, which records that step alone."""
    torch.manual_seed(0)
    place = (lambda tensor: tensor) if device is None else pretend_accelerator.on_pretend
    settings = {"rank": 2} if covariance in ("low_rank", "learned") else {}
    where = "cpu" if device is None else "pretend"
    criterion = criterion_for(
        covariance=covariance, bound=bound, ignore_value=missing, pos_weight=place(PRESENT), device=where, **settings
    )
    if covariance == "learned":
        with torch.no_grad():
            criterion.covariance.factor.copy_(place(normal(1, A, 2, seed=9)))
    for seed in range(3):
        features, weight, targets = sample(seed)
        if missing is not None:
            targets[0, 1] = missing
        features, weight, targets = place(features), place(weight).requires_grad_(), place(targets)
        if device is not None:
            device.clear()
        logits = logits_of(features, weight)
        loss = criterion(logits, targets, features=features, weight=weight)
        (loss + criterion.consistency(logits, weight=weight)).backward()
    waits = [] if device is None else list(device.waits)
    launches = 0 if device is None else len(device.launches)
    sigma = criterion.covariance.covariance(0).detach()
    return [value.detach().cpu() for value in (loss, weight.grad, sigma, criterion.covariance.count)], waits, launches


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
@pytest.mark.parametrize(
    ("covariance", "bound", "missing"),
    [*((name, "jensen", -1.0) for name in COVARIANCES), ("full", "jensen", None), ("diagonal", "exact", NAN)],
)
def test_a_step_equals_the_cpus_and_waits_for_nothing(covariance, bound, missing):
    expected, _, _ = last_step(covariance, bound, missing)
    with pretend_accelerator.PretendAccelerator() as device:
        actual, waits, launches = last_step(covariance, bound, missing, device)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    # One read per step tells the host whether a sketch is full (tests of ISDALoss).
    assert [w for w in waits if not (covariance == "low_rank" and w.line.startswith("functional/sketch.py"))] == []
    assert launches < 900


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"targets": torch.zeros(N)},
            r"targets must have the shape of logits, \(7, 3\), one label for each, got \(7,\)",
        ),
        ({"targets": torch.full((N, K), 2.0)}, r"targets must lie in 0..1, got 2 \(21 of 21 labels are out of range\)"),
        ({"targets": torch.full((N, K), NAN)}, r"targets must lie in 0..1, got nan \(21 of 21"),
        ({"logits": torch.zeros(N, K + 1)}, r"logits must have shape \(N, 3, ...\), got \(7, 4\)"),
        ({"weight": torch.zeros(K, A + 1)}, r"weight must have shape \(3, 4\), got \(3, 5\)"),
        ({"features": torch.zeros(N, A + 1)}, r"features must have shape \(7, 4\) for logits \(7, 3\), got \(7, 5\)"),
        ({"features": torch.full((N, A), NAN)}, "features must be finite, got NaN or infinity in 7 of 7 rows"),
    ],
)
def test_bad_input_is_named_before_anything_changes(change, message):
    criterion = ISDABCELoss(K, A, total_steps=5)
    features, weight, targets = sample(dtype=torch.float32)
    call = {"logits": logits_of(features, weight), "targets": targets, "features": features, "weight": weight}
    criterion(**call)
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion(**{**call, **change})
    assert_same_state(criterion, before)


def test_a_label_out_of_range_beside_missing_ones_is_named():
    features, weight, targets = sample()
    targets[0, 0], targets[1, 1] = -1, -2
    message = r"targets must lie in 0..1 or be ignore_value=-1, got -2 \(1 of 21 labels are out of range\)"
    with pytest.raises(ValueError, match=message):
        criterion_for(ignore_value=-1)(logits_of(features, weight), targets, features=features, weight=weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bound": "tilted"}, "bound must be one of jensen, exact, got 'tilted'"),
        ({"covariance": "block"}, "covariance must be one of full, .*, got 'block'"),
        ({"reduction": "max"}, "reduction must be one of mean, sum, none, got 'max'"),
        ({"pos_weight": torch.ones(2)}, r"pos_weight must have shape \(3,\), got \(2,\)"),
        ({"class_weight": torch.ones(3, 1)}, r"class_weight must have shape \(3,\), got \(3, 1\)"),
        ({"ignore_index": -1}, "ISDABCELoss has no setting 'ignore_index'; did you mean 'ignore_value'"),
        ({"label_smoothing": 0.1}, "ISDABCELoss has no setting 'label_smoothing'$"),
        ({"rnak": 3, "covariance": "low_rank"}, "ISDABCELoss has no setting 'rnak' .*; did you mean 'rank'"),
        ({"covariance": FullCovariance(K, A)}, "covariance must be for 1 classes x 4 features, got 3 classes x 4"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        ISDABCELoss(K, A, **settings)


@pytest.mark.parametrize("labels", [0, 1.5])
def test_a_number_of_labels_that_is_none_is_named(labels):
    with pytest.raises(ValueError, match=f"num_labels must be a positive integer, got {labels}"):
        ISDABCELoss(labels, A)


def test_a_covariance_made_elsewhere_is_used():
    model = FullCovariance(1, A, dtype=torch.float64, decay=0.9)
    features, weight, targets = sample()
    criterion_for(covariance=model)(logits_of(features, weight), targets, features=features, weight=weight)
    assert model.count.tolist() == [N]
