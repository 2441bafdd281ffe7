"""lambda_0="auto": the strength solves L_train(lambda) = L_held-out, in anybody's loop, and survives a resume."""

import copy
import math
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pretend_accelerator
from isda import ISDABCELoss, ISDALoss
from isda.losses import ExplicitLoss
from isda.losses.long_tail import LogitAdjustment
from isda.losses.matching import KEPT_SAMPLES, SOLUTIONS, solve_strength
from oracles import batch_covariance, jensen_bound

C, A = 3, 6


def batch(size=60, seed=0, noise=1.0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % C
    x = noise * torch.randn(size, 4, generator=generator, dtype=torch.float64)
    x[torch.arange(size), y] += 2
    return x, y


def net(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, A), nn.Tanh(), nn.Dropout(0.3), nn.Linear(A, C)).double()
    return model, ISDALoss.attach(model, lambda_0="auto", covariance="full", **settings)


def trained(**settings):
    model, criterion = net(**settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(40):
        optimizer.zero_grad()
        criterion(model(batch()[0]), batch()[1]).backward()
        optimizer.step()
    return model, criterion


def held_out(model, noise=2.0):
    x, y = batch(40, seed=1, noise=noise)
    training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(x)
    model.train(training)
    return logits, y


def test_the_strength_is_zero_before_the_first_match_and_the_statistics_learn():
    model, criterion = net()
    loss = criterion(logits := model(batch()[0]), batch()[1])
    assert criterion.strength == 0
    assert torch.equal(loss, F.cross_entropy(logits, batch()[1]))
    assert int(criterion.covariance.count.sum()) == 60


def test_the_solution_is_that_of_the_equation():
    """Against a grid over the bound written from the equation, with covariances computed from all features."""
    model, criterion = trained()
    logits, y = held_out(model)
    found = criterion.match(logits, y)
    sigmas = torch.stack([criterion.covariance.covariance(c) for c in range(C)])
    model.eval()
    with torch.no_grad():
        rows = model(batch()[0])
    weight = model[-1].weight.detach()

    def loss_at(strength):
        return float(jensen_bound(rows, batch()[1], weight, sigmas, strength).mean())

    target = float(F.cross_entropy(logits, y))
    assert found > 0
    assert loss_at(found * (1 - 1e-3)) < target < loss_at(found * (1 + 1e-3))
    assert loss_at(0.0) == pytest.approx(float(F.cross_entropy(rows, batch()[1])), abs=1e-12)


def test_the_tilted_bound_is_matched_by_itself():
    model, criterion = trained(bound="tilted", max_ratio=math.inf)
    logits, y = held_out(model)
    tilted = criterion.match(logits, y)
    x, labels = batch()
    model.eval()
    with torch.no_grad():
        rows = model(x)
    augmented = criterion.augmented_logits(rows, labels, weight=model[-1].weight, strength=tilted)
    own = rows.gather(1, labels[:, None]).squeeze(1)
    assert float((augmented.logsumexp(1) - own).mean()) == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-3)
    model_2, criterion_2 = trained()
    assert criterion_2.match(*held_out(model_2)) < tilted, "a tighter bound needs a larger strength"


def test_logits_that_are_too_small_are_matched_where_the_held_out_loss_is_lowest():
    model, criterion = trained()
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter /= 10
    logits, y = held_out(model, noise=1.5)
    scales = torch.linspace(1, 2, 10_001, dtype=torch.float64)
    losses = torch.stack([F.cross_entropy(logits * scale, y) for scale in scales])
    scale, target = float(scales[losses.argmin()]), float(losses.min())
    assert scale == 2, "the network was made far less confident than it should be"
    found = criterion.match(logits, y)
    sigmas = torch.stack([criterion.covariance.covariance(c) for c in range(C)])
    model.eval()
    with torch.no_grad():
        rows = scale * model(batch()[0])
    weight = scale * model[-1].weight.detach()

    def loss_at(strength):
        return float(jensen_bound(rows, batch()[1], weight, sigmas, strength).mean())

    assert found == 0 if loss_at(0.0) >= target else loss_at(found * 0.99) < target < loss_at(found * 1.01)
    assert criterion.match(held_out_loss=float(F.cross_entropy(logits, y))) >= 0, "a loss alone has no scale"


def test_what_is_held_out_is_given_once():
    model, criterion = trained()
    logits, y = held_out(model)
    for arguments in ((), (logits, y)):
        given = {"held_out_loss": 1.0} if arguments else {}
        with pytest.raises(ValueError, match="held-out logits and targets, or held_out_loss, and not both"):
            criterion.match(*arguments, **given)
    assert not criterion.schedule.matched


def test_without_a_gap_there_is_no_augmentation():
    model, criterion = trained()
    x, y = batch()
    model.eval()
    assert criterion.match(model(x).detach(), y) == 0
    assert criterion.match(torch.nn.functional.one_hot(y, C).double() * 50, y, weight=model[-1].weight) == 0


def test_the_strength_is_the_median_of_the_last_five_solutions():
    model, criterion = trained()
    solutions = []
    for noise in (1.5, 2.0, 2.5, 3.0, 1.7, 2.2, 2.7):
        fresh = copy.deepcopy(criterion)
        fresh.schedule.solutions = []
        training = (model.eval()(batch()[0]).detach(), batch()[1])
        solutions.append(fresh.match(*held_out(model, noise), training=training, weight=model[-1].weight))
        criterion.match(*held_out(model, noise))
    assert SOLUTIONS == 5
    assert criterion.strength == pytest.approx(sorted(solutions[-5:])[2], rel=1e-6)


def test_a_loader_gives_what_its_logits_give():
    model, criterion = trained()
    other = copy.deepcopy((model, criterion))[1]
    x, y = batch(40, seed=1, noise=2.0)
    training = (model.eval()(batch()[0]).detach(), batch()[1])
    model.train()
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    by_loader = criterion.match(loader, training=training)
    assert all(module.training for module in model.modules()), "modes are as they were"
    model.eval()
    by_logits = other.match(model(x).detach(), y, training=training, weight=model[-1].weight)
    assert by_loader == pytest.approx(by_logits, rel=1e-6)


def test_training_samples_are_the_latest_batches_in_eval_mode():
    model, criterion = net()
    sizes = [200, 200, 200, 200]
    for seed, size in enumerate(sizes):
        criterion(model(batch(size, seed)[0]), batch(size, seed)[1]).backward()
    kept = list(criterion._samples.outputs())
    assert sum(len(labels) for _, labels in kept) == 600 >= KEPT_SAMPLES
    model.eval()
    for seed, (logits, labels) in zip((1, 2, 3), kept, strict=True):
        torch.testing.assert_close(logits, model(batch(200, seed)[0]))
        assert torch.equal(labels, batch(200, seed)[1])


def test_matching_changes_no_parameter_no_statistics_and_no_random_state():
    model, criterion = trained()
    before = copy.deepcopy((model.state_dict(), criterion.covariance.state_dict()))
    state = torch.get_rng_state()
    criterion.match(*held_out(model))
    after = (model.state_dict(), criterion.covariance.state_dict())
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(value, new[name]) for name, value in old.items())
    assert torch.equal(state, torch.get_rng_state())


def test_a_restored_criterion_has_the_same_strength():
    model, criterion = trained()
    for noise in (1.5, 2.0, 2.5):
        criterion.match(*held_out(model, noise))
    _, other = net()
    other.load_state_dict(criterion.state_dict())
    assert other.strength == criterion.strength > 0
    assert other.schedule.solutions == criterion.schedule.solutions
    spoilt = criterion.state_dict()
    spoilt["schedule._extra_state"] = torch.full((SOLUTIONS,), math.nan, dtype=torch.float64)
    with pytest.raises(ValueError, match="_extra_state"):
        other.load_state_dict(spoilt)


def test_copies_and_pickles_of_the_model_work():
    model, criterion = trained()
    copied, _ = copy.deepcopy((model, criterion))
    assert torch.equal(copied.eval()(batch()[0]), model.eval()(batch()[0]))
    criterion.detach()
    assert not model._forward_pre_hooks
    pickle.loads(pickle.dumps(model))


def test_ignored_labels_and_pixels():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, A, 1), nn.Tanh(), nn.Conv2d(A, C, 1)).double()
    criterion = ISDALoss.attach(model, lambda_0="auto", covariance="full", ignore_index=255)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 2, 5, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(C, (4, 5, 6), generator=generator)
    targets[0, 0] = 255
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(30):
        optimizer.zero_grad()
        criterion(model(images), targets).backward()
        optimizer.step()
    wrong = (targets + 1) % C
    wrong[targets == 255] = 255
    assert criterion.match(model(images).detach(), wrong) > 0


def test_what_cannot_be_matched_is_refused():
    model, criterion = net()
    logits, y = held_out(model)
    with pytest.raises(ValueError, match="match needs training batches"):
        criterion.match(logits, y)
    with pytest.raises(ValueError, match="total_steps must not be given with lambda_0='auto'"):
        ISDALoss(C, A, "auto", 100)
    with pytest.raises(ValueError, match="lambda_0"):
        ISDALoss(C, A, "automatic")
    with pytest.raises(ValueError, match="only ISDALoss supports 'auto'"):
        ExplicitLoss(C, A, "auto")
    with pytest.raises(ValueError, match="only ISDALoss supports 'auto'"):
        ISDABCELoss(C, A, "auto")
    with pytest.raises(ValueError, match="'auto' does not support them"):
        ISDALoss(C, A, "auto", offset=LogitAdjustment(torch.tensor([3.0, 2.0, 1.0])))
    with pytest.raises(ValueError, match=r"match needs a criterion with lambda_0='auto', got lambda_0=0\.5"):
        ISDALoss(C, A, 0.5, schedule="constant").match(logits, y)
    criterion(model(batch()[0]), batch()[1])
    with pytest.raises(ValueError, match="at least one held-out sample"):
        criterion.match(logits, torch.full_like(y, -100))
    with pytest.raises(ValueError, match="finite held-out loss"):
        criterion.match(logits * math.nan, y)
    assert criterion.strength == 0


def test_a_loss_that_never_reaches_the_target_ends_at_the_largest_strength():
    assert solve_strength(lambda strength: 0.0, 1.0, largest=50.0) == 50.0


def test_the_covariances_of_the_test_are_those_of_its_features():
    """The oracle above takes the criterion's covariances: they are those of all features that were seen."""
    model, criterion = net()
    model[2].p = 0.0
    criterion(model(batch()[0]), batch()[1])
    features = model[:2](batch()[0]).detach()
    expected = batch_covariance(features, batch()[1], C)
    actual = torch.stack([criterion.covariance.covariance(c) for c in range(C)])
    torch.testing.assert_close(actual, expected)


def test_importing_the_losses_does_not_import_the_compiler():
    """It would take a second and 160 MB of every start."""
    script = "import sys; from isda import ISDALoss; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_training_steps_of_auto_do_not_make_a_device_wait(bound):
    with pretend_accelerator.PretendAccelerator() as device:
        model = nn.Sequential(nn.Linear(4, A), nn.ReLU(), nn.Linear(A, C)).to("pretend")
        criterion = ISDALoss.attach(model, lambda_0="auto", bound=bound)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = batch(12)[0].float().to("pretend"), batch(12)[1].to("pretend")
        for step in range(8):
            if step == 4:
                model.eval()
                with torch.no_grad():
                    criterion.match(5 * model(x), (y + 1) % C)
                model.train()
                assert criterion.strength > 0
            if step == 5:
                device.waits.clear()
            criterion(model(x), y).backward()
            optimizer.step()
        assert device.waits == []


def test_epochs_and_loader_are_refused_by_their_own_names():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="epochs and loader must not be given with lambda_0='auto'"):
        ISDALoss.attach(model, lambda_0="auto", epochs=2, loader=[1, 2])
