"""ISDALoss against brute-force oracles, as nn.CrossEntropyLoss where it is one, and in training as people write it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import oracles
from isda import ISDALoss
from loss_cases import (
    BOUNDS,
    KINDS,
    assert_same_state,
    assert_same_with_gradients,
    batch,
    criterion_of,
    integers,
    network,
    normal,
    sigmas_of,
    state_of,
)

C, A, N = 4, 5, 7
LAMBDA = 0.7
WEIGHTS = torch.tensor([0.3, 1.0, 2.5, 0.6]).double()
EARLIER = normal(24, A, seed=10) + 3, integers(C - 1, 24, seed=11)
"""What criteria have learned before; class 3 does not occur."""


def problem(*grid: int, n: int = N):
    """Features, labels, logits and weight; logits are not those of the features, so that each has its own gradient."""
    features, targets = normal(n, A, *grid, seed=12) + 3, integers(C, n, *grid, seed=13)
    logits, weight = (2 * normal(n, C, *grid, seed=14)).requires_grad_(), normal(C, A, seed=15).requires_grad_()
    return features, targets, logits, weight


def trained(kind="full", **settings) -> ISDALoss:
    criterion = criterion_of(kind, C, A, **settings)
    criterion.covariance.update(*EARLIER)
    return criterion


def likeliest(targets):
    return targets.argmax(1) if targets.is_floating_point() else targets


def tilts_of(criterion, logits, labels, weight, sigmas, strength=LAMBDA):
    """The tilts (N, C) that a criterion uses: the label, or what it found, as its augmented logits tell."""
    if criterion.bound == "jensen":
        return oracles.distributions(labels, C)
    shown = criterion.augmented_logits(logits.detach(), labels, weight=weight.detach(), strength=strength)
    variance = (shown.detach() - logits.detach()) * 2 / strength
    rows = zip(variance, labels.tolist(), strict=True)
    return torch.stack([oracles.tilt_behind(v, weight.detach(), sigmas[y].detach(), y) for v, y in rows])


def augmented_rows(logits, labels, counted, weight, sigmas, tilts, strength=LAMBDA):
    """(N, C) z + lambda/2 (w_j - wbar)' Sigma_y (w_j - wbar)."""
    rows = []
    for z, y, known, tilt in zip(logits, labels.tolist(), counted.tolist(), tilts, strict=True):
        rows.append(z + strength / 2 * oracles.tilted_variance(weight, sigmas[y], tilt) if known else z)
    return torch.stack(rows)


def expected_loss(criterion, kind, features, targets, logits, weight, **settings):
    """The loss of rows after the criterion has learned from them."""
    ignored = settings.get("ignore_index", -100)
    labels = likeliest(targets)
    counted = torch.ones_like(labels).bool() if targets.is_floating_point() else labels != ignored
    seen = torch.cat([EARLIER[0], features[counted]]), torch.cat([EARLIER[1], labels[counted]])
    sigmas = sigmas_of(criterion.covariance, kind, *seen)
    safe = torch.where(counted, labels, 0)
    tilts = tilts_of(criterion, logits, safe, weight, sigmas)
    augmented = augmented_rows(logits, safe, counted, weight, sigmas, tilts)
    return oracles.reduced_loss(augmented, logits, targets, **settings)


def call(criterion, logits, targets, features, weight, **settings):
    return criterion(logits, targets, features=features, weight=weight, **{"strength": LAMBDA} | settings)


# -- values and gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_equal_the_oracle(kind, bound):
    features, targets, logits, weight = problem()
    criterion = trained(kind, bound=bound)
    loss = call(criterion, logits, targets, features, weight)
    expected = expected_loss(criterion, kind, features, targets, logits, weight)
    tolerance = 1e-7 if bound == "tilted" else 1e-10
    assert_same_with_gradients(loss, expected, (logits, weight, *criterion.parameters()), atol=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("bound", BOUNDS)
def test_targets_of_every_kind_equal_the_oracle(bound, soft, smoothing, weighted, reduction):
    features, targets, logits, weight = problem()
    if soft:
        targets = torch.softmax(2 * normal(N, C, seed=16), 1)
    else:
        targets[2] = 9
    settings = {
        "reduction": reduction,
        "label_smoothing": smoothing,
        "ignore_index": 9,
        "class_weight": WEIGHTS if weighted else None,
    }
    criterion = trained(bound=bound, **settings)
    loss = call(criterion, logits, targets, features, weight)
    expected = expected_loss(criterion, "full", features, targets, logits, weight, **settings)
    assert_same_with_gradients(loss, expected, (logits, weight), atol=1e-7, rtol=1e-7)


def test_in_float32_it_is_as_in_float64():
    features, targets, logits, weight = problem()
    for bound in BOUNDS:
        exact = call(trained(bound=bound), logits, targets, features, weight)
        single = ISDALoss(C, A, bound=bound)
        single.covariance.update(EARLIER[0].float(), EARLIER[1])
        loss = call(single, logits.float(), targets, features.float(), weight.float())
        assert loss.item() == pytest.approx(exact.item(), rel=1e-4)


def test_a_class_without_statistics_has_plain_cross_entropy():
    features, _, logits, weight = problem()
    targets = torch.full((N,), 3)
    criterion = criterion_of("full", C, A)
    loss = call(criterion, logits[:1], targets[:1], features[:1], weight)
    torch.testing.assert_close(loss, F.cross_entropy(logits[:1], targets[:1]))


def test_features_get_no_gradient_of_their_own_and_a_1x1_convolution_is_a_classifier():
    features, targets, logits, weight = problem()
    features.requires_grad_()
    expected = call(trained(), logits, targets, features, weight)
    loss = call(trained(), logits, targets, features, weight.view(C, A, 1, 1))
    torch.testing.assert_close(loss, expected)
    assert torch.autograd.grad(loss, features, allow_unused=True) == (None,)


def test_second_derivatives_are_right_or_refused():
    features, targets, logits, weight = problem()
    for kind in KINDS:
        for bound in BOUNDS:
            criterion = trained(kind, bound=bound)
            loss = call(criterion, logits, targets, features, weight)
            expected = expected_loss(criterion, kind, features, targets, logits, weight)

            def penalised(value):
                (slope,) = torch.autograd.grad(value, weight, create_graph=True)
                return torch.autograd.grad(value + slope.square().sum(), weight)[0]

            if bound == "jensen" and kind in ("full", "diagonal", "identity", "low_rank"):
                with pytest.raises(RuntimeError, match="no second derivative"):
                    penalised(loss)
            elif bound == "jensen":
                torch.testing.assert_close(penalised(loss), penalised(expected), rtol=1e-5, atol=1e-6)


# -- pixels and tokens -----------------------------------------------------------------------------------------------

COARSE, FINE, IGNORED = (3, 2), (7, 5), 255


def expected_of_maps(criterion, features, targets, logits, weight, align_corners):
    """Variances at the features, everything interpolated to the logits and then to the labels, pixel by pixel."""
    height, width = features.shape[2:]
    labels = oracles.nearest_labels(targets, height, width).flatten()
    counted, rows = labels != IGNORED, oracles.rows_of(features)
    seen = torch.cat([EARLIER[0], rows[counted]]), torch.cat([EARLIER[1], labels[counted]])
    sigmas = oracles.covariances_of("full", *seen, C)
    coarse = oracles.rows_of(oracles.bilinear(logits, height, width, align_corners))
    safe = torch.where(counted, labels, 0)
    if criterion.bound == "tilted":
        shown = trained(bound="tilted")
        shown.covariance.load_state_dict(criterion.covariance.state_dict())
        tilts = tilts_of(shown, coarse, safe, weight, sigmas)
    else:
        tilts = oracles.distributions(safe, C)
    added = augmented_rows(coarse, safe, counted, weight, sigmas, tilts) - coarse
    added = torch.stack([part.t().reshape(C, height, width) for part in added.split(height * width)])
    logits, added = (oracles.bilinear(t, *targets.shape[1:], align_corners) for t in (
        logits, oracles.bilinear(added, *logits.shape[2:], align_corners)))  # fmt: skip
    augmented, plain = oracles.rows_of(logits + added), oracles.rows_of(logits)
    # The published loss is the cross-entropy of augmented logits, to which interpolation adds at the label too.
    aim = augmented if criterion.bound == "jensen" else plain
    return oracles.reduced_loss(augmented, aim, targets.flatten(), ignore_index=IGNORED)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("sizes", [(COARSE, COARSE), (COARSE, FINE), (FINE, FINE), (COARSE, (2, 1))])
@pytest.mark.parametrize("bound", BOUNDS)
def test_pixels_whose_labels_logits_and_features_differ_in_resolution(bound, sizes, align_corners):
    logits = (2 * normal(2, C, *sizes[0], seed=2)).requires_grad_()
    features, weight = normal(2, A, *COARSE, seed=1) + 1, normal(C, A, seed=3).requires_grad_()
    targets = integers(C, 2, *sizes[1], seed=4)
    targets[0, :2, :2] = IGNORED
    criterion = trained(bound=bound, ignore_index=IGNORED, align_corners=align_corners)
    loss = call(criterion, logits, targets, features, weight)
    nearest = oracles.nearest_labels(targets, *COARSE)
    assert criterion.covariance.count.sum() == 24 + (nearest != IGNORED).sum()
    expected = expected_of_maps(criterion, features, targets, logits, weight, align_corners)
    assert_same_with_gradients(loss, expected, (logits, weight), atol=1e-7, rtol=1e-7)
    plain = criterion.eval()(logits, targets)
    upsampled = F.interpolate(logits, sizes[1], mode="bilinear", align_corners=align_corners)
    baseline = F.cross_entropy(logits if sizes[0] == sizes[1] else upsampled, targets, ignore_index=IGNORED)
    assert torch.equal(plain, baseline)


def layouts():
    """The same rows as maps, as maps in channels_last, as tokens, and as as many tokens as classes."""
    yield "maps", (2, 3), lambda t: t, lambda y: y
    yield "channels_last", (2, 3), lambda t: t.to(memory_format=torch.channels_last), lambda y: y
    yield "tokens", (6,), lambda t: t.movedim(1, -1), lambda y: y.movedim(1, -1) if y.is_floating_point() else y
    yield "as many tokens as classes", (C,), lambda t: t.movedim(1, -1), lambda y: (
        y.movedim(1, -1) if y.is_floating_point() else y)  # fmt: skip
    yield "tokens as torch has them", (6,), lambda t: t, lambda y: y


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("layout", list(layouts()), ids=lambda layout: layout[0])
@pytest.mark.parametrize("bound", BOUNDS)
def test_maps_and_tokens_are_their_rows(bound, layout, soft):
    _, grid, arrange, arrange_labels = layout
    features, targets, logits, weight = problem(*grid, n=2)
    if soft:
        targets = torch.softmax(2 * normal(2, C, *grid, seed=16), 1)

    def rows(tensor):
        return tensor.movedim(1, -1).flatten(0, -2)

    arranged = arrange(logits), arrange_labels(targets), arrange(features)
    loss = call(trained(bound=bound), *arranged, weight)
    by_rows = rows(logits), rows(targets) if soft else targets.flatten(), rows(features)
    assert_same_with_gradients(loss, call(trained(bound=bound), *by_rows, weight), (logits, weight))
    each = call(trained(bound=bound, reduction="none"), *arranged, weight)
    assert each.shape == (2, *grid)
    torch.testing.assert_close(each.flatten(), call(trained(bound=bound, reduction="none"), *by_rows, weight))


# -- where it is cross-entropy ---------------------------------------------------------------------------------------

PLAIN = [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"reduction": "none", "class_weight": WEIGHTS.float()}]


@pytest.mark.parametrize("settings", PLAIN, ids=str)
@pytest.mark.parametrize("kind", ["hard", "soft", "pixels", "float64"])
@pytest.mark.parametrize("why", ["eval", "no_grad", "inference_mode", "lambda_0"])
def test_it_is_cross_entropy_to_the_bit_and_changes_nothing(why, kind, settings):
    dtype = torch.float64 if kind == "float64" else torch.float32
    if kind == "float64" and "class_weight" in settings:
        settings = {**settings, "class_weight": WEIGHTS}
    grid = (3, 4) if kind == "pixels" else ()
    logits, targets = normal(N, C, *grid, seed=1, dtype=dtype), integers(C, N, *grid, seed=2)
    targets[1] = -100
    if kind == "soft":
        targets = torch.softmax(normal(N, C, seed=3, dtype=dtype), 1)
    criterion = ISDALoss(C, A, 0.0 if why == "lambda_0" else 0.5, 10, **settings)
    criterion.covariance.update(EARLIER[0].float(), EARLIER[1])
    criterion.set_step(5)
    criterion.train(why != "eval")
    before = state_of(criterion)
    plain = nn.CrossEntropyLoss(**{{"class_weight": "weight"}.get(k, k): v for k, v in settings.items()})
    mode = {"no_grad": torch.no_grad(), "inference_mode": torch.inference_mode()}.get(why, torch.enable_grad())
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    with mode:
        loss, expected = criterion(ours, targets), plain(theirs, targets)
    assert torch.equal(loss, expected)
    if expected.requires_grad:
        loss.sum().backward()
        expected.sum().backward()
        assert torch.equal(ours.grad, theirs.grad)
    assert_same_state(criterion, before)


def test_at_strength_zero_it_is_cross_entropy_and_learns():
    features, targets, logits, weight = problem()
    for bound in BOUNDS:
        criterion = criterion_of("full", C, A, bound=bound)
        loss = criterion(logits, targets, features=features, weight=weight)
        torch.testing.assert_close(loss, F.cross_entropy(logits, targets))
        assert criterion.covariance.count.sum() == N


def test_a_batch_of_ignored_rows_gives_what_cross_entropy_gives_and_teaches_nothing():
    features, targets, logits, weight = problem()
    criterion = trained(reduction="sum")
    before = state_of(criterion.covariance)
    loss = call(criterion, logits, torch.full_like(targets, -100), features, weight)
    assert loss.item() == pytest.approx(0.0)
    assert_same_state(criterion.covariance, before)


# -- the strength ----------------------------------------------------------------------------------------------------


def test_strength_grows_with_the_training_forwards_up_to_lambda_0():
    features, targets, logits, weight = problem()
    criterion, strengths = trained(total_steps=4), []
    for _ in range(6):
        strengths.append(criterion.strength)
        criterion.eval()(logits, targets)
        loss = criterion.train()(logits, targets, features=features, weight=weight)
        at_this_strength = trained()
        at_this_strength.load_state_dict(criterion.state_dict())
        shown = at_this_strength.augmented_logits(logits, targets, weight=weight, strength=strengths[-1])
        torch.testing.assert_close(loss, F.cross_entropy(shown, targets))
    assert strengths == pytest.approx([0.8 * min(t / 4, 1) for t in range(6)])
    assert int(criterion.step) == 6
    criterion.set_step(1)
    assert criterion.strength == pytest.approx(0.2)
    criterion.total_steps = 2
    assert criterion.strength == pytest.approx(0.4)


def test_a_given_strength_does_not_move_the_schedule_and_may_be_a_tensor():
    features, targets, logits, weight = problem()
    first, second = trained(), trained()
    loss = call(first, logits, targets, features, weight, strength=0.6)
    tensor = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(call(second, logits, targets, features, weight, strength=tensor), loss)
    assert int(first.step) == int(second.step) == 0
    assert first.covariance.count.sum() == 24 + N
    baseline = trained(lambda_0=0.0)
    torch.testing.assert_close(call(baseline, logits, targets, features, weight, strength=0.6), loss)


def test_without_total_steps_there_is_a_strength_only_where_it_is_given():
    features, targets, logits, weight = problem()
    criterion = trained(total_steps=None)
    assert call(criterion, logits, targets, features, weight).isfinite()
    before = state_of(criterion)
    with pytest.raises(ValueError, match="total_steps must be given"):
        criterion(logits, targets, features=features, weight=weight)
    assert_same_state(criterion, before)
    assert trained(lambda_0=0.0, total_steps=None).strength == pytest.approx(0.0)
    with pytest.raises(ValueError, match="step must be an integer of at least 0"):
        criterion.set_step(-1)


def test_two_forwards_and_one_backward_equal_two_backwards():
    first, second = problem(), problem(n=5)
    together, apart = trained(), trained()
    weight = first[3]
    inputs = [(logits, targets, features) for features, targets, logits, _ in (first, second)]
    sum(call(together, *part, weight) for part in inputs).backward()
    expected = sum(torch.autograd.grad(call(apart, *part, weight), weight)[0] for part in inputs)
    torch.testing.assert_close(weight.grad, expected)


# -- augmented logits and consistency --------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(), (2, 3)])
@pytest.mark.parametrize("bound", BOUNDS)
def test_augmented_logits_give_the_loss_and_change_nothing(bound, grid):
    features, targets, logits, weight = problem(*grid, n=3)
    criterion = trained(bound=bound)
    targets[1] = -100
    loss = call(criterion, logits, targets, features, weight)
    before = state_of(criterion)
    shown = criterion.augmented_logits(logits, targets.int(), weight=weight, strength=LAMBDA)
    own = logits.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)
    expected = (shown.logsumexp(1) - own)[targets >= 0].mean()
    assert_same_with_gradients(loss, expected, (logits, weight))
    assert torch.equal(shown[1], logits[1])
    assert_same_state(criterion, before)
    criterion.set_step(5)
    half = criterion.augmented_logits(logits, targets, weight=weight)
    torch.testing.assert_close(half, criterion.augmented_logits(logits, targets, weight=weight, strength=0.4))
    with pytest.raises(ValueError, match=r"targets must lie in 0\.\.3"):
        criterion.augmented_logits(logits, targets + 4, weight=weight, strength=1.0)


@pytest.mark.parametrize("grid", [(), (2, 3)])
@pytest.mark.parametrize("bound", BOUNDS)
def test_consistency_equals_prop_2_and_changes_nothing(bound, grid):
    _, _, logits, weight = problem(*grid, n=3)
    criterion = trained("within", bound=bound, reduction="none")
    before = state_of(criterion)
    losses = criterion.consistency(logits, weight=weight, strength=LAMBDA)
    assert losses.shape == (3, *grid)
    sigmas = oracles.covariances_of("within", *EARLIER, C)
    published = oracles.jensen_consistency(oracles.rows_of(logits), weight, sigmas, LAMBDA)
    if bound == "jensen":
        assert_same_with_gradients(losses.flatten(), published, (logits, weight))
    else:
        assert (losses.flatten() <= published).all()
    assert_same_state(criterion, before)
    criterion.set_step(5)
    for reduction, number in (("mean", losses.numel()), ("sum", 1)):
        criterion.reduction = reduction
        value = criterion.consistency(logits, weight=weight, strength=LAMBDA)
        torch.testing.assert_close(value, losses.sum() / number)
        scheduled = criterion.consistency(logits, weight=weight)
        torch.testing.assert_close(scheduled, criterion.consistency(logits, weight=weight, strength=0.4))


# -- max_ratio -------------------------------------------------------------------------------------------------------


def test_max_ratio_limits_what_is_added_to_what_the_logits_vary_by():
    features, targets, logits, weight = problem()
    free = trained()
    call(free, logits, targets, features, weight)
    added = free.augmented_logits(logits, targets, weight=weight, strength=LAMBDA) - logits
    spread = sum(row.std(correction=0) for row in logits.detach()) / N
    for ratio in (0.1, 1e6):
        criterion = trained(max_ratio=ratio)
        loss = call(criterion, logits, targets, features, weight)
        factor = min(1.0, float(ratio * spread / added.detach().mean()))
        assert (factor < 1) == (ratio < 1)
        torch.testing.assert_close(loss, F.cross_entropy(logits + factor * added, targets))


@pytest.mark.parametrize("bound", BOUNDS)
def test_one_logit_of_minus_infinity_does_not_switch_max_ratio_off(bound):
    features, targets, logits, weight = problem()
    targets = targets % 3
    masked = logits.detach().clone()
    masked[0, 3] = -math.inf
    for ratio in (0.1, None):
        plain = call(trained(max_ratio=ratio, bound=bound), logits, targets, features, weight)
        loss = call(trained(max_ratio=ratio, bound=bound), masked, targets, features, weight)
        assert loss.item() == pytest.approx(plain.item(), rel=0.3)
    assert call(trained(max_ratio=0.1), logits, targets, features, weight) < call(
        trained(), logits, targets, features, weight
    )


# -- as people call it -----------------------------------------------------------------------------------------------


def test_labels_of_any_integer_type_and_keywords_as_torch_names_them():
    features, targets, logits, weight = problem()
    expected = call(trained(), logits, targets, features, weight)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        torch.testing.assert_close(call(trained(), logits, targets.to(dtype), features, weight), expected)
    loss = trained()(input=logits, target=targets, features=features, weight=weight, strength=LAMBDA)
    torch.testing.assert_close(loss, expected)
    assert torch.equal(trained().eval()(logits, targets.int()), F.cross_entropy(logits, targets))
    output = {"out": logits, "aux": None}
    torch.testing.assert_close(call(trained(), output, targets, features, weight), expected)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_constant_per_row_changes_nothing(bound):
    features, targets, logits, weight = problem()
    expected = call(trained(bound=bound), logits, targets, features, weight)
    for shifted in (logits.log_softmax(1), logits + 5 * normal(N, 1, seed=9)):
        loss = call(trained(bound=bound), shifted, targets, features, weight)
        assert_same_with_gradients(loss, expected, (logits, weight), atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("through", ["nothing", "log_softmax", "a constant", "keywords"])
def test_an_attached_criterion_equals_one_by_hand(through):
    (x, y), model = batch(), network()
    change = {"log_softmax": lambda z: z.log_softmax(1), "a constant": lambda z: z + z[:, :1]}.get(through, lambda z: z)
    features = model[:-1](x)
    expected = call(criterion_of(), change(model(x)), y, features, model[-1].weight)
    gradients = torch.autograd.grad(expected, model.parameters())
    criterion = ISDALoss.attach(model, 0.8, 10, dtype=torch.float64)
    z = change(model(x))
    loss = criterion(input=z, target=y, strength=LAMBDA) if through == "keywords" else criterion(z, y, strength=LAMBDA)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, model.parameters()), gradients)
    assert criterion.covariance.count.sum() == len(y)


def test_mixup_by_two_calls_on_one_pass_learns_from_the_labels_of_the_first():
    (x, y), model = batch(), network()
    other = y.flip(0)
    criterion = ISDALoss.attach(model, 0.8, 10)
    logits = model(x)
    parts = [criterion(logits, labels, strength=LAMBDA) for labels in (y, other)]
    assert torch.equal(criterion.covariance.count, torch.bincount(y, minlength=4))
    mixed = (0.7 * parts[0] + 0.3 * parts[1]).detach()
    by_hand = criterion_of()
    features = model[:-1](x).detach()
    by_hand.covariance.update(features, y)
    expected = [
        F.cross_entropy(by_hand.augmented_logits(logits, labels, weight=model[-1].weight, strength=LAMBDA), labels)
        for labels in (y, other)
    ]
    torch.testing.assert_close(mixed, (0.7 * expected[0] + 0.3 * expected[1]).detach())
    scheduled = ISDALoss.attach(network(), 0.8, 10)
    assert int(scheduled.step) == 0


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_of_the_model_counts_once_with_the_same_gradients(use_reentrant):
    x, y = batch()
    results = []
    for checkpointed in (False, True):
        model = network()
        criterion = ISDALoss.attach(model, 0.8, 2)
        for _ in range(3):
            inputs = x.clone().requires_grad_()
            logits = checkpoint(model, inputs, use_reentrant=use_reentrant) if checkpointed else model(inputs)
            criterion(logits, y).backward()
        assert criterion.covariance.count.sum() == 3 * len(y)
        results.append(([p.grad for p in model.parameters()], state_of(criterion)))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_of_the_criterion_is_refused(use_reentrant):
    (x, y), model, criterion = batch(), network(), criterion_of()

    def loss_of(inputs):
        features = model[:-1](inputs)
        return criterion(model[-1](features), y, features=features, weight=model[-1].weight)

    with pytest.raises(RuntimeError, match="checkpoint the model alone"):
        checkpoint(loss_of, x.requires_grad_(), use_reentrant=use_reentrant).backward()
    assert criterion.covariance.count.sum() <= len(y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bound", BOUNDS)
def test_under_autocast_the_loss_is_near_that_of_float32_and_statistics_stay_float32(bound, dtype):
    (x, y), losses, counts = batch(dtype=torch.float32), [], []
    for enabled in (False, True):
        model = network(dtype=torch.float32)
        criterion = ISDALoss.attach(model, 0.8, 10, bound=bound)
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            loss = criterion(model(x), y, strength=1.0)
        loss.backward()
        losses.append(loss.item())
        counts.append(criterion.covariance.count)
        assert loss.dtype == criterion.covariance.scatter.dtype == model[-1].weight.grad.dtype == torch.float32
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert torch.equal(*counts)


def test_a_bfloat16_model_has_bfloat16_gradients_of_a_float32_loss():
    (x, y), model = batch(dtype=torch.bfloat16), network(dtype=torch.bfloat16)
    criterion = ISDALoss.attach(model, 0.8, 10)
    loss = criterion(model(x), y, strength=1.0)
    loss.backward()
    assert loss.dtype == criterion.covariance.scatter.dtype == torch.float32
    assert model[-1].weight.grad.dtype == torch.bfloat16
    exact = network().bfloat16().double()
    expected = ISDALoss.attach(exact, 0.8, 10)(exact(x.double()), y, strength=1.0)
    assert loss.item() == pytest.approx(expected.item(), rel=3e-2)


def test_float64_logits_keep_their_digits_beside_float32_statistics():
    features, targets, logits, weight = problem()
    criterion = ISDALoss(C, A)
    loss = call(criterion, logits, targets, features, weight, strength=1e-12)
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bound", BOUNDS)
def test_training_lowers_the_loss(bound):
    model = network(dtype=torch.float32)
    criterion = ISDALoss.attach(model, 0.5, 60, bound=bound)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    x = normal(60, 3, seed=1, dtype=torch.float32)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    losses = []
    for _ in range(60):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(F.cross_entropy(model(x), y).item())
    assert losses[-1] < 0.5 * losses[0]
    assert criterion.strength == pytest.approx(0.5)


# -- what is refused -------------------------------------------------------------------------------------------------

BAD_CALLS = {
    "numpy weight": (
        {"weight": np.zeros((C, A))},
        "weight must be a dense tensor of shape .4, 5. on cpu, got a ndarray",
    ),
    "meta weight": ({"weight": torch.zeros(C, A, device="meta")}, "weight must be a dense tensor .* on meta"),
    "sparse weight": ({"weight": torch.zeros(C, A).to_sparse()}, "weight must be .* got a sparse float32 tensor"),
    "integer weight": ({"weight": torch.zeros(C, A).long()}, "weight must be"),
    "transposed weight": ({"weight": torch.zeros(A, C)}, r"got a float32 tensor of shape \(5, 4\)"),
    "no weight": ({"weight": None}, "weight= must be given"),
    "no features": ({"features": None}, r"pass features= and weight=, or make the criterion by attach\(model\)"),
    "NaN": ({"features": torch.full((N, A), math.nan)}, "features must be finite"),
    "narrow features": ({"features": torch.zeros(N, A - 1)}, "features must have a row of 5"),
    "few features": ({"features": torch.zeros(N - 1, A)}, "features must have a row of 5 for each of 7 labels"),
    "maps of features": ({"features": torch.zeros(N, A, 2, 2)}, "features must have 2 dimensions as the logits"),
    "label": ({"targets": torch.full((N,), C)}, r"0\.\.3 or be ignore_index, got 4 .7 of 7"),
    "negative label": ({"targets": torch.full((N,), -1)}, "got -1"),
    "few labels": ({"targets": torch.zeros(N - 1).long()}, "class indices, one for each row of logits .7, 4."),
    "wide distributions": ({"targets": torch.zeros(N, C + 1)}, "distributions of the shape of logits"),
    "boolean labels": ({"targets": torch.zeros(N, dtype=torch.bool)}, "integer class indices, got torch.bool"),
    "a list of labels": ({"targets": [0] * N}, "targets must be a tensor, got a list"),
    "too few classes": ({"logits": torch.zeros(N, C - 1)}, r"logits must be floating point of shape \(N, 4, ...\)"),
    "integer logits": ({"logits": torch.zeros(N, C).long()}, "logits must be floating point .* got torch.int64"),
    "one row of logits": ({"logits": torch.zeros(C), "targets": torch.tensor(0)}, "logits must be floating point"),
    "negative strength": ({"strength": -1.0}, "strength must be a number in 0.* got -1.0"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_is_refused_and_changes_nothing(case):
    change, message = BAD_CALLS[case]
    names = ("features", "targets", "logits", "weight")
    arguments = dict(zip(names, problem(), strict=True)) | {"strength": LAMBDA} | change
    criterion = trained()
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion(arguments.pop("logits"), arguments.pop("targets"), **arguments)
    assert_same_state(criterion, before)


def test_an_empty_batch_is_refused():
    features, targets, logits, weight = problem()
    with pytest.raises(ValueError, match="at least one label, got an empty batch"):
        call(trained(), logits[:0], targets[:0], features[:0], weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bound": "tilt"}, "did you mean 'tilted'"),
        ({"reduction": "average"}, "reduction must be one of mean, sum, none, got 'average'"),
        ({"covariance": "diag"}, "covariance must be one of"),
        ({"lambda_0": -0.5}, "lambda_0 must be .* got -0.5"),
        ({"lambda_0": math.nan}, "lambda_0 must be"),
        ({"lambda_0": "auto"}, "lambda_0 must be .* got 'auto'"),
        ({"total_steps": 0}, "total_steps must be an integer of at least 1, got 0"),
        ({"label_smoothing": 1.5}, r"label_smoothing must be a number in 0..1, got 1.5"),
        ({"max_ratio": 0}, "max_ratio must be"),
        ({"class_weight": torch.ones(3)}, r"class_weight must be a floating point tensor of shape \(4,\)"),
        ({"class_weight": torch.ones(4).long()}, "class_weight must be a floating point tensor"),
        ({"num_classes": 0}, "num_classes must be an integer of at least 1"),
        ({"feature_dim": 2.5}, "feature_dim must be an integer"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ISDALoss(**{"num_classes": C, "feature_dim": A} | settings)


@pytest.mark.parametrize("attached", [False, True])
def test_a_loss_that_fails_after_the_update_and_is_repeated_counts_once(attached, monkeypatch):
    (x, y), model = batch(), network()
    criterion = ISDALoss.attach(model, 0.8, 10) if attached else criterion_of()
    features, logits = model[:-1](x), model(x)
    given = {} if attached else {"features": features, "weight": model[-1].weight}

    def out_of_memory(*_):
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(criterion, "augmented", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            criterion(logits, y, **given)
    assert int(criterion.step) == 0
    criterion(logits, y, **given)
    assert torch.equal(criterion.covariance.count, torch.bincount(y, minlength=4))
    assert int(criterion.step) == 1
    criterion(model(x), y, **given)
    assert criterion.covariance.count.sum() == 2 * len(y)
    assert int(criterion.step) == 2


def test_features_may_be_parameters():
    (x, y), model = batch(), network()
    criterion, features = criterion_of(), nn.Parameter(model[:-1](x).detach())
    criterion(model[-1](features), y, features=features, weight=model[-1].weight)
    assert criterion.covariance.count.sum() == len(y)
    assert not list(criterion.parameters())


def test_settings_are_shown():
    shown = repr(trained(total_steps=7, bound="tilted"))
    assert "lambda_0=0.8, total_steps=7, reduction='mean', bound='tilted'" in shown
