"""ISDABCELoss inside training loops: attached, resumed, recomputed, under autocast, off the CPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from label_cases import BOUNDS, COVARIANCES, NAN, PRESENT, A, K, N, criterion_for, logits_of, sample, small_model
from loss_oracles import normal
from torch.utils.checkpoint import checkpoint

import pretend_accelerator
from isda import ISDABCELoss


@pytest.mark.parametrize("bound", BOUNDS)
def test_attached_it_needs_logits_and_targets_only(bound):
    model, (_, _, targets) = small_model(), sample()
    images = normal(N, 5, seed=4)
    by_hand = criterion_for(bound=bound, lambda_0=0.5)
    criterion = ISDABCELoss.attach(model, 0.5, bound=bound, schedule="constant")
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
    criterion = ISDABCELoss.attach(model, 0.5, covariance="learned", bound="exact", schedule="constant")
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
        model, criterion = small_model(), criterion_for(bound="exact", schedule="linear", total_steps=4)
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
    criterion = ISDABCELoss.attach(model, 0.5, bound=bound, schedule="constant")
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(normal(N, 5, seed=4, dtype=torch.float32))
        loss = criterion(logits, targets)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    model, outside = small_model(torch.float32), ISDABCELoss(K, A, 0.5, bound=bound, schedule="constant")
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
