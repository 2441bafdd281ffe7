"""The fastai callback against a plain loop, in the Learner itself: steps, loss function, lr_find, saving, mixing."""

import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fastai.callback.mixup import MixUp
from fastai.callback.schedule import ParamScheduler  # noqa: F401  adds lr_find to Learner
from fastai.callback.training import GradientAccumulation
from fastai.learner import Callback, CancelFitException, load_learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, LabelSmoothingCrossEntropyFlat
from fastai_runs import BATCH, BATCHES, COUNT, EPOCHS, batches, learner, loader, network, samples
from plain_training import LAMBDA_0, MOMENTUM, RATE, difference, train_by_hand
from states import rounding_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDABCELoss, ISDALoss
from isda.integrations.fastai import ISDACallback

ROOT = Path(__file__).parents[2]
TOLERANCE = rounding_of(EPOCHS * BATCHES)


def by_hand(samples_per_step=1):
    """The same without fastai: a step when enough samples have come, on the sum of their gradients over that number."""
    model, fed, ends, seen = network(), list(loader(COUNT, BATCH)) * EPOCHS, set(), 0
    for index, (x, _) in enumerate(fed):
        seen += len(x)
        if seen >= samples_per_step:
            ends, seen = ends | {index}, 0
    if samples_per_step == 1:
        return model, train_by_hand(model, fed, ends, len(ends))
    # GradientAccumulation scales the mean of a batch by its size over the number of samples asked for.
    criterion = ISDALoss.attach(model, LAMBDA_0, len(ends))
    criterion.set_step(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for index, (x, y) in enumerate(fed):
        (criterion(model(x), y) * len(x) / samples_per_step).backward()
        if index in ends:
            optimiser.step()
            optimiser.zero_grad()
            criterion.set_step(criterion.step + 1)
    criterion.detach()
    return model, criterion


def test_it_trains_like_a_plain_loop():
    learn = learner(ISDACallback(LAMBDA_0))
    learn.fit(EPOCHS)
    model, criterion = by_hand()
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE
    assert learn.isda.criterion.total_steps == learn.isda.criterion.step == EPOCHS * BATCHES
    plain = learner()
    plain.fit(EPOCHS)
    assert difference(plain.model, model) > 1e-3  # the strength is one that shows


@pytest.mark.parametrize("data", [batches(COUNT), loader(COUNT, BATCH)], ids=["fastai", "torch"])
@pytest.mark.parametrize("samples_per_step", [8, 10])
def test_accumulated_gradients_are_one_step(samples_per_step, data):
    """Batches of 4, and of 3 at the end of an epoch; windows go on over the end of epochs."""
    learn = learner(ISDACallback(LAMBDA_0), GradientAccumulation(samples_per_step), data=data)
    learn.fit(EPOCHS)
    model, criterion = by_hand(samples_per_step)
    assert learn.isda.criterion.total_steps == criterion.total_steps
    assert learn.isda.criterion.step == criterion.step
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE


def test_settings_go_to_the_criterion_and_those_of_the_loss_function_stay():
    weight = torch.tensor([1.0, 2.0, 0.5])
    loss = CrossEntropyLossFlat(weight=weight, label_smoothing=0.1)
    learn = learner(ISDACallback(1.0, total_steps=5, covariance="diagonal", bound="tilted"), loss=loss)
    learn.fit(EPOCHS)
    model, fed = network(), list(loader(COUNT, BATCH)) * EPOCHS
    settings = {"covariance": "diagonal", "bound": "tilted", "class_weight": weight, "label_smoothing": 0.1}
    criterion = train_by_hand(model, fed, set(range(len(fed))), 5, lambda_0=1.0, **settings)
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE


def test_several_labels_per_sample():
    x, y = samples(COUNT)
    data = DataLoader(TensorDataset(x, F.one_hot(y, 3).float()), batch_size=BATCH)
    learn = learner(ISDACallback(LAMBDA_0), loss=BCEWithLogitsLossFlat(), data=data)
    learn.dls.loaders[1] = data
    learn.fit(EPOCHS)
    model, fed = network(), list(data) * EPOCHS
    criterion = train_by_hand(model, fed, set(range(len(fed))), len(fed), kind=ISDABCELoss)
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE


class Judge(Callback):
    """What the validation of each epoch says, and what it should."""

    order = 50

    def before_fit(self):
        self.seen = []

    def after_loss(self):
        if not self.training:
            self.seen.append((self.learn.loss.item(), F.cross_entropy(self.pred, self.y).item()))
        else:
            assert torch.equal(self.loss_func.activation(self.pred), self.pred.softmax(-1))
            assert torch.equal(self.loss_func.decodes(self.pred), self.pred.argmax(-1))


def test_validation_is_plain_cross_entropy_and_changes_nothing():
    loss, judge = CrossEntropyLossFlat(), Judge()
    learn = learner(ISDACallback(LAMBDA_0), judge, loss=loss)
    learn.fit(EPOCHS)
    assert len(judge.seen) == 3 * EPOCHS
    assert all(seen == plain for seen, plain in judge.seen)
    counted = int(learn.isda.criterion.covariance.count.sum())
    assert counted == EPOCHS * COUNT
    assert learn.loss_func is loss
    assert not learn.model[2]._forward_hooks
    learn.remove_cb(judge)
    learn.validate()
    probabilities, targets, decoded, each = learn.get_preds(dl=learn.dls.valid, with_decoded=True, with_loss=True)
    with torch.no_grad():
        logits = learn.model(samples(11, seed=1)[0])
    assert torch.allclose(probabilities, logits.softmax(1))
    assert torch.equal(decoded, logits.argmax(1))
    assert torch.allclose(each, F.cross_entropy(logits, targets, reduction="none"))
    assert int(learn.isda.criterion.covariance.count.sum()) == counted


def test_looking_for_a_learning_rate_leaves_the_statistics_alone(tmp_path):
    learn = learner(ISDACallback(LAMBDA_0), folder=tmp_path)
    learn.lr_find(num_it=8, show_plot=False)
    assert learn.isda.criterion is None
    learn.fit(1)
    before = {name: value.clone() for name, value in learn.isda.state_dict().items()}
    learn.lr_find(num_it=8, show_plot=False)
    assert all(torch.equal(before[name], value) for name, value in learn.isda.state_dict().items())
    learn.fit(1)
    assert int(learn.isda.criterion.covariance.count.sum()) == 2 * COUNT  # from fit to fit
    assert learn.isda.criterion.step == learn.isda.criterion.total_steps == BATCHES


class Stop(Callback):
    """Ends a fit before its second epoch: by fastai's own exception, or by an error."""

    def __init__(self, error):
        self.error = error

    def before_epoch(self):
        if self.epoch == 2:
            raise self.error


def test_a_resumed_training_ends_as_one_that_was_never_interrupted(tmp_path):
    cut = learner(ISDACallback(LAMBDA_0), Stop(CancelFitException()), folder=tmp_path)
    cut.fit(EPOCHS)
    assert int(cut.isda.criterion.covariance.count.sum()) == 2 * COUNT
    cut.save("cut")
    torch.save(cut.isda.state_dict(), tmp_path / "statistics.pt")
    assert set(torch.load(tmp_path / "models" / "cut.pth")["model"]) == set(network().state_dict())
    learn = learner(ISDACallback(LAMBDA_0), folder=tmp_path)
    learn.create_opt()
    learn.load("cut")
    learn.isda.load_state_dict(torch.load(tmp_path / "statistics.pt"))
    learn.fit(EPOCHS, start_epoch=2)
    model, criterion = by_hand()
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE


def test_a_fit_that_ends_in_an_error_is_tidied_up():
    loss = CrossEntropyLossFlat()
    learn = learner(ISDACallback(LAMBDA_0), loss=loss)
    with pytest.raises(OSError, match="power"):
        learn.fit(EPOCHS, cbs=Stop(OSError("the power failed")))
    learn.validate()
    assert learn.loss_func is loss
    assert not learn.model[2]._forward_hooks
    learn.fit(1)
    assert int(learn.isda.criterion.covariance.count.sum()) == 3 * COUNT


def test_an_exported_learner_keeps_the_statistics_and_one_without_the_callback_needs_no_isda(tmp_path):
    learn = learner(ISDACallback(LAMBDA_0), folder=tmp_path)
    learn.fit(1)
    statistics = learn.isda.criterion.covariance.scatter.clone()
    learn.export("with.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_learner(tmp_path / "with.pkl")
    assert torch.equal(loaded.isda.state_dict()["covariance.scatter"], statistics)
    learn.remove_cb(ISDACallback)
    learn.export("without.pkl")
    assert b"isda." not in (tmp_path / "without.pkl").read_bytes()
    assert b"isda." in (tmp_path / "with.pkl").read_bytes()


class SameMix(MixUp):
    """Mixup with a share that is known."""

    def before_batch(self):
        super().before_batch()
        self.kept.append((self.xb[0].clone(), self.yb1[0], self.yb[0], self.lam))


def test_mixup_counts_a_pass_once():
    mix = SameMix(0.4)
    mix.kept = []
    learn = learner(ISDACallback(LAMBDA_0), mix)
    learn.fit(1)
    model = network()
    criterion = ISDALoss.attach(model, LAMBDA_0, BATCHES, reduction="none")
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for x, first, second, share in mix.kept:
        logits = model(x)
        torch.lerp(criterion(logits, first), criterion(logits, second), share).mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    criterion.detach()
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion.covariance, criterion.covariance) < TOLERANCE


@pytest.mark.parametrize("axis", [1, -1])
def test_pixels_and_words(axis):
    """Classes in the second dimension (segmentation) or in the last (tokens)."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, 3, 5), torch.randint(3, (6, 3, 5))
    if axis == -1:
        x, y, head = x.flatten(2).transpose(1, 2).contiguous(), y.flatten(1), nn.Linear(4, 3)
    else:
        head = nn.Conv2d(4, 3, 1)
    model = nn.Sequential(head)
    data = DataLoader(TensorDataset(x, y), batch_size=2)
    by_loop = nn.Sequential(type(head)(4, 3, *(() if axis == -1 else (1,))))
    by_loop.load_state_dict(model.state_dict())
    learn = learner(ISDACallback(LAMBDA_0), loss=CrossEntropyLossFlat(axis=axis), data=data, model=model)
    learn.dls.loaders[1] = data
    learn.fit(2)
    criterion = ISDALoss.attach(by_loop, LAMBDA_0, 6)
    optimiser = torch.optim.SGD(by_loop.parameters(), lr=RATE, momentum=MOMENTUM)
    for images, targets in list(data) * 2:
        logits = by_loop(images)
        if axis == -1:
            logits, targets = logits.flatten(0, 1), targets.flatten()
        criterion(logits, targets).backward()
        optimiser.step()
        optimiser.zero_grad()
    criterion.detach()
    assert difference(learn.model, by_loop) < TOLERANCE
    assert difference(learn.isda.criterion.covariance, criterion.covariance) < TOLERANCE


def test_bad_input_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="lambda_0 must be a finite number >= 0, got -1"):
        ISDACallback(-1)
    for loss, name in ((LabelSmoothingCrossEntropyFlat(), "LabelSmoothingCrossEntropy"), (F.cross_entropy, "function")):
        with pytest.raises(ValueError, match=f"criterion must be an nn.CrossEntropyLoss .* got {name}"):
            learner(ISDACallback(), loss=loss).fit(1)
    with pytest.raises(ValueError, match="classifier must name a layer of the model, got 'output'"):
        learner(ISDACallback(classifier="output")).fit(1)


@pytest.mark.slow
def test_two_processes_have_the_statistics_of_one(tmp_path):
    script = Path(__file__).with_name("fastai_worker.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    # Each process has one half of the 24 samples, in batches of 3.
    x, y = samples(24)
    fed = [
        (torch.cat([x[at : at + 3], x[12 + at : 15 + at]]), torch.cat([y[at : at + 3], y[12 + at : 15 + at]]))
        for at in range(0, 12, 3)
    ] * EPOCHS
    model = network()
    criterion = train_by_hand(model, fed, set(range(len(fed))), len(fed))
    for rank in range(2):
        saved = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert saved["total_steps"] == len(fed)
        for name, part in (("model", model), ("statistics", criterion)):
            for key, value in part.state_dict().items():
                torch.testing.assert_close(saved[name][key], value, rtol=TOLERANCE, atol=TOLERANCE, msg=f"{rank} {key}")


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "fastai_digits.py"), run_name="__main__")
    assert "test accuracy" in capsys.readouterr().out
