"""The Lightning callback against a plain loop, in the Trainer itself."""

import csv
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning_runs import Classifier, Interruption, fit, folder_of
from plain_training import (
    BATCH,
    BATCHES,
    CLASSES,
    COUNT,
    EPOCHS,
    LAMBDA_0,
    TOLERANCE,
    difference,
    loader,
    samples,
    train_by_hand,
)
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from isda import ExplicitLoss, ISDABCELoss, ISDALoss
from isda.integrations.lightning import ISDACallback

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


class WithMetric(Classifier):
    """A torchmetrics metric, which says that every module is in it, beside F.cross_entropy."""

    def __init__(self):
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy

        self.accuracy = MulticlassAccuracy(CLASSES)

    def training_step(self, batch, index):
        logits = self.network(batch[0])
        self.accuracy(logits, batch[1])
        return F.cross_entropy(logits, target=batch[1])


def make(name):
    if name == "metric":
        pytest.importorskip("torchmetrics")
        return WithMetric()
    return Classifier() if name == "function" else Classifier(nn.CrossEntropyLoss())


@pytest.mark.parametrize(("module", "accumulate"), [("function", 1), ("criterion", 2), ("metric", 1)])
def test_it_trains_like_a_plain_loop(module, accumulate):
    module, isda = make(module), ISDACallback(LAMBDA_0)
    fit(module, isda, accumulate_grad_batches=accumulate)
    model, criterion = train_by_hand(accumulate=accumulate)
    assert difference(module.network, model) < TOLERANCE
    assert difference(isda.criterion, criterion) < TOLERANCE
    assert isda.criterion.strength == pytest.approx(LAMBDA_0)
    assert not module.network[2]._forward_hooks
    plain, _ = train_by_hand(accumulate=accumulate, lambda_0=0.0)
    assert difference(plain, model) > 100 * TOLERANCE  # the strength is one that shows


def test_settings_of_the_call_and_of_the_callback():
    weight = torch.tensor([1.0, 2.0, 0.5])
    module = Classifier(nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1, ignore_index=2, reduction="sum"))
    isda = ISDACallback(1.0, 5, classifier="network.2", covariance="diagonal", bound="tilted")
    fit(module, isda, max_epochs=1)
    given = {"class_weight": weight, "label_smoothing": 0.1, "ignore_index": 2, "reduction": "sum"}
    hand = {"covariance": "diagonal", "bound": "tilted", "lambda_0": 1.0, "total_steps": 5, "epochs": 1}
    model, criterion = train_by_hand(**hand, **given)
    assert difference(module.network, model) < TOLERANCE
    assert difference(isda.criterion.covariance, criterion.covariance) < TOLERANCE


def test_several_labels_per_sample():
    x, y = samples()
    data = DataLoader(TensorDataset(x, F.one_hot(y, CLASSES).float()), batch_size=BATCH)
    module, isda = Classifier(nn.BCEWithLogitsLoss()), ISDACallback(LAMBDA_0, loss=ISDABCELoss)
    fit(module, isda, data=data)
    model, criterion = train_by_hand(data, kind=ISDABCELoss)
    assert difference(module.network, model) < TOLERANCE
    assert difference(isda.criterion, criterion) < TOLERANCE


class Auxiliary(Classifier):
    """A second head with two classes, before and after the first."""

    def __init__(self):
        super().__init__()
        self.network.add_module("other", nn.Linear(6, 2))

    def training_step(self, batch, index):
        logits, other = self.network[:3](batch[0]), self.network.other(batch[0])
        return F.cross_entropy(logits, batch[1]) + F.cross_entropy(other, batch[1] % 2)


def test_a_loss_over_other_classes_stays_as_it_is():
    module, isda = Auxiliary(), ISDACallback(LAMBDA_0, classifier="network.2")
    fit(module, isda)
    model, criterion = train_by_hand()
    assert difference(module.network[:3], model) < TOLERANCE
    assert isda.criterion.step == criterion.step


def test_validation_is_plain_cross_entropy_and_changes_nothing():
    module, isda = Classifier(), ISDACallback(LAMBDA_0)
    trainer = fit(module, isda, validation=loader(11, seed=1))
    assert len(module.validated) == 2 + 3 * EPOCHS  # two batches of the sanity check
    assert all(torch.equal(seen, plain) for seen, plain in module.validated)
    trainer.validate(module, loader(11, seed=1), verbose=False)
    assert int(isda.criterion.covariance.count.sum()) == EPOCHS * COUNT


@pytest.fixture
def interrupted(tmp_path):
    """The checkpoint of a training that stopped after two of three epochs."""
    module, isda, saved = Classifier(), ISDACallback(LAMBDA_0), ModelCheckpoint(tmp_path, save_last=True)
    with pytest.raises(OSError, match="power"):
        fit(module, isda, Interruption(2), saved, **folder_of(tmp_path))
    assert not module.network[2]._forward_hooks
    return tmp_path / "last.ckpt"


def test_a_resumed_training_ends_as_one_that_was_never_interrupted(interrupted):
    module, isda = Classifier(), ISDACallback(LAMBDA_0)
    fit(module, isda, ckpt_path=interrupted, weights_only=True)
    model, criterion = train_by_hand()
    assert difference(module.network, model) < TOLERANCE
    assert difference(isda.criterion, criterion) < TOLERANCE


def test_checkpoints_load_without_isda(interrupted):
    checkpoint = torch.load(interrupted, weights_only=True)  # nothing but tensors and plain objects
    assert checkpoint["state_dict"].keys() == Classifier().state_dict().keys()
    fit(Classifier(), ckpt_path=interrupted, weights_only=True)


@pytest.mark.parametrize("first", [True, False])
def test_averages_of_weights_leave_the_statistics_alone(first):
    module, isda = Classifier(), ISDACallback(LAMBDA_0)
    average = EMAWeightAveraging(use_buffers=True, decay=0.8)
    fit(module, *((isda, average) if first else (average, isda)))
    model, criterion = train_by_hand()
    assert difference(isda.criterion, criterion) < TOLERANCE
    assert difference(module.network, model) > 100 * TOLERANCE  # it ends with the average


def test_another_fit_starts_without_statistics_and_a_longer_one_goes_on():
    module, isda = Classifier(), ISDACallback(LAMBDA_0)
    trainer = fit(module, isda, max_epochs=2)
    trainer.fit_loop.max_epochs = EPOCHS
    trainer.fit(module, loader())
    assert int(isda.criterion.covariance.count.sum()) == EPOCHS * COUNT
    assert isda.criterion.strength == pytest.approx(LAMBDA_0)
    fit(Classifier(), isda, max_epochs=1)
    assert int(isda.criterion.covariance.count.sum()) == COUNT


def test_mixed_precision_changes_little():
    module, isda = Classifier(), ISDACallback(LAMBDA_0)
    fit(module, isda, precision="bf16-mixed", max_epochs=1)
    model, criterion = train_by_hand(epochs=1, total_steps=BATCHES)
    assert isda.criterion.covariance.scatter.dtype == torch.float32
    assert TOLERANCE < difference(module.network, model) < 0.1
    assert isda.criterion.step == criterion.step == BATCHES


def test_strength_and_variance_are_logged_with_every_batch(tmp_path):
    isda = ISDACallback(LAMBDA_0)
    logger = CSVLogger(tmp_path, name="", version="")
    fit(Classifier(), isda, max_epochs=2, logger=logger, log_every_n_steps=1)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open(encoding="utf-8")))
    expected = [LAMBDA_0 * step / (2 * BATCHES) for step in range(1, 2 * BATCHES + 1)]
    assert [float(row["isda/strength"]) for row in rows] == pytest.approx(expected)
    assert all(float(row["isda/margin_variance"]) > 0 for row in rows[1:])


def test_explicit_augmentation_and_copies():
    module, isda = Classifier(), ISDACallback(LAMBDA_0, loss=ExplicitLoss, samples=2)
    fit(module, isda, max_epochs=1)
    assert isinstance(isda.criterion, ExplicitLoss)
    assert pickle.loads(pickle.dumps(isda)).criterion.step == BATCHES


class OwnLoss(Classifier):
    def training_step(self, batch, index):
        return -self.network(batch[0]).log_softmax(1)[range(len(batch[1])), batch[1]].mean()


class Endless(IterableDataset):
    def __iter__(self):
        return iter(zip(*samples(8), strict=True))


def test_bad_input_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="training_step of OwnLoss must call cross_entropy on logits of 3 classes"):
        fit(OwnLoss(), ISDACallback())
    with pytest.raises(ValueError, match=r"lambda_0 must be a number in 0\.\..*, got -1"):
        fit(Classifier(), ISDACallback(-1))
    with pytest.raises(ValueError, match="total_steps must be given where the trainer does not know its length"):
        fit(Classifier(), ISDACallback(), data=DataLoader(Endless(), batch_size=4))
    with pytest.raises(ValueError, match="write the training loop yourself"):
        fit(Classifier(), ISDACallback(covariance="learned"))


def test_a_criterion_of_the_module_needs_no_callback(tmp_path):
    """The way for several losses: it moves, switches modes and is checkpointed with the module."""

    class Own(Classifier):
        def __init__(self):
            super().__init__()
            self.criterion = ISDALoss.attach(self.network, LAMBDA_0, EPOCHS * BATCHES)

    module = Own()
    trainer = fit(module)
    model, criterion = train_by_hand()
    assert difference(module.network, model) < TOLERANCE
    assert difference(module.criterion, criterion) < TOLERANCE
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    assert Own.load_from_checkpoint(tmp_path / "own.ckpt", weights_only=True).criterion.step == EPOCHS * BATCHES


def test_a_compiled_network_trains_alike():
    module, isda = Classifier(), ISDACallback(LAMBDA_0)
    module.network = torch.compile(module.network, backend="eager")
    fit(module, isda)
    model, _ = train_by_hand()
    assert difference(module.network._orig_mod, model) < TOLERANCE


@pytest.mark.slow
def test_the_older_name_of_the_library_works():
    code = (
        "import pytorch_lightning as pl; from isda.integrations.lightning import ISDACallback;"
        "assert issubclass(ISDACallback, pl.Callback)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=300)
