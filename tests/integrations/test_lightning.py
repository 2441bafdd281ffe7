"""The Lightning callback against a plain loop, in the Trainer itself: steps, checkpoints, averages, processes."""

import copy
import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from lightning_runs import BATCH, BATCHES, COUNT, EPOCHS, Classifier, Interruption, trainer
from plain_training import LAMBDA_0, MOMENTUM, RATE, difference, loader, network, samples, train_by_hand
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from isda import ISDABCELoss
from isda.integrations.lightning import ISDACallback

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

ROOT = Path(__file__).parents[2]


def fit(module, *callbacks, data=None, **settings):
    made = trainer(*callbacks, **settings)
    made.fit(module, loader(COUNT, BATCH) if data is None else data)
    return made


def by_hand(accumulate=1, count=COUNT, batch_size=BATCH):
    """The same training without Lightning, whose windows end with the epoch at the latest."""
    model, batches = network(), list(loader(count, batch_size))
    last = len(batches) - 1
    ends = {
        epoch * len(batches) + index
        for epoch in range(EPOCHS)
        for index in range(len(batches))
        if (index + 1) % accumulate == 0 or index == last
    }
    return model, train_by_hand(model, batches * EPOCHS, ends, len(ends), share=1 / accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_trains_like_a_plain_loop(accumulate):
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    fit(module, isda, accumulate_grad_batches=accumulate)
    model, criterion = by_hand(accumulate)
    assert difference(module.network, model) < 1e-12
    assert difference(isda.criterion, criterion) < 1e-12
    assert isda.criterion.total_steps == isda.criterion.step == (21, 12)[accumulate - 1]
    assert isda.criterion.strength == LAMBDA_0
    plain = Classifier()
    fit(plain, accumulate_grad_batches=accumulate)
    assert difference(plain.network, model) > 1e-3  # the strength is one that shows


def test_settings_go_to_the_criterion_and_those_of_the_module_stay():
    plain = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]).double(), label_smoothing=0.1, reduction="sum")
    module = Classifier(plain)
    isda = ISDACallback("criterion", lambda_0=1.0, total_steps=5, covariance="diagonal", bound="tilted", decay=0.9)
    fit(module, isda)
    given = {"class_weight": plain.weight, "label_smoothing": 0.1, "reduction": "sum"}
    model, batches = network(), list(loader(COUNT, BATCH)) * EPOCHS
    hand = {"covariance": "diagonal", "bound": "tilted", "decay": 0.9, "lambda_0": 1.0, **given}
    criterion = train_by_hand(model, batches, set(range(len(batches))), 5, **hand)
    assert difference(module.network, model) < 1e-12
    assert difference(isda.criterion, criterion) < 1e-12


def test_several_labels_per_sample():
    module, isda = Classifier(nn.BCEWithLogitsLoss()), ISDACallback(lambda_0=LAMBDA_0)
    x, y = samples(COUNT)
    data = DataLoader(TensorDataset(x, F.one_hot(y, 3).double()), batch_size=BATCH)
    fit(module, isda, data=data)
    model, batches = network(), list(data) * EPOCHS
    criterion = train_by_hand(model, batches, set(range(len(batches))), len(batches), kind=ISDABCELoss)
    assert isinstance(isda.criterion, ISDABCELoss)
    assert difference(module.network, model) < 1e-12
    assert difference(isda.criterion, criterion) < 1e-12


def test_validation_is_plain_cross_entropy_and_changes_nothing():
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    trainer(isda).fit(module, loader(COUNT, BATCH), loader(11, BATCH, seed=1))
    assert len(module.validated) == 2 + 3 * EPOCHS  # two batches of the sanity check
    assert all(torch.equal(seen, plain) for seen, plain in module.validated)
    assert int(isda.criterion.covariance.count.sum()) == EPOCHS * COUNT
    trainer(isda).validate(module, loader(11, BATCH, seed=1), verbose=False)
    assert int(isda.criterion.covariance.count.sum()) == EPOCHS * COUNT


class Forgetful(Classifier):
    """Has a criterion and computes its loss without it."""

    def training_step(self, batch, index):
        return F.cross_entropy(self.network(batch[0]), batch[1])


def test_a_criterion_that_is_never_called_is_warned_of_after_the_first_epoch():
    isda = ISDACallback(lambda_0=LAMBDA_0)
    with pytest.warns(UserWarning, match="Forgetful never called its CrossEntropyLoss in the first epoch") as seen:
        fit(Forgetful(), isda)
    assert sum("never called" in str(warning.message) for warning in seen) == 1
    assert int(isda.criterion.covariance.count.sum()) == 0
    with pytest.warns(UserWarning, match="never called"):
        fit(Forgetful(), isda, max_epochs=-1, max_steps=2)  # ends in the middle of an epoch


def test_the_module_is_given_back_as_it_was():
    module = Classifier()
    names = set(vars(module.criterion)), module.state_dict().keys()
    fit(module, ISDACallback())
    assert (set(vars(module.criterion)), module.state_dict().keys()) == names
    assert not module.network[2]._forward_hooks


@pytest.fixture
def interrupted(tmp_path):
    """The checkpoint of a training that stopped after two of three epochs."""
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    with pytest.raises(OSError, match="power"):
        fit(module, isda, Interruption(2), ModelCheckpoint(tmp_path, save_last=True), folder=tmp_path)
    assert "forward" not in vars(module.criterion)
    assert not module.network[2]._forward_hooks
    return tmp_path / "last.ckpt"


def test_a_resumed_training_ends_as_one_that_was_never_interrupted(interrupted):
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    trainer(isda).fit(module, loader(COUNT, BATCH), ckpt_path=interrupted, weights_only=True)
    model, criterion = by_hand()
    assert difference(module.network, model) < 1e-12
    assert difference(isda.criterion, criterion) < 1e-12
    assert isda.criterion.step == 21


def test_checkpoints_load_without_isda(interrupted):
    checkpoint = torch.load(interrupted, weights_only=True)  # nothing but tensors and plain objects
    assert checkpoint["state_dict"].keys() == Classifier().state_dict().keys()
    assert Classifier.load_from_checkpoint(interrupted, weights_only=True).network[2].weight.shape == (3, 8)
    (state,) = (state for key, state in checkpoint["callbacks"].items() if key.startswith("ISDACallback"))
    assert int(state["covariance.count"].sum()) == 2 * COUNT
    assert int(state["schedule.step"]) == 2 * BATCHES
    trainer().fit(Classifier(), loader(COUNT, BATCH), ckpt_path=interrupted, weights_only=True)


@pytest.mark.parametrize("first", [True, False])
def test_averages_of_weights_leave_the_statistics_alone(first, tmp_path):
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    average = EMAWeightAveraging(use_buffers=True, decay=0.8)
    made = trainer(*((isda, average) if first else (average, isda)))
    made.fit(module, loader(COUNT, BATCH), loader(11, BATCH, seed=1))
    model, criterion = by_hand()
    assert difference(isda.criterion, criterion) < 1e-12
    assert difference(module.network, model) > 1e-3  # it ends with the average
    assert all(torch.equal(seen, plain) for seen, plain in module.validated)
    made.save_checkpoint(tmp_path / "averaged.ckpt")
    saved = torch.load(tmp_path / "averaged.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == Classifier().state_dict().keys()


def test_looking_for_a_learning_rate_leaves_no_trace(tmp_path):
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    Tuner(trainer(isda, folder=tmp_path)).lr_find(
        module, loader(COUNT, BATCH), num_training=6, update_attr=False, attr_name="rate"
    )
    assert isda.criterion is None
    finder = LearningRateFinder(num_training_steps=6, update_attr=False, attr_name="rate")
    for first in (True, False):
        isda = ISDACallback(lambda_0=LAMBDA_0)
        fit(Classifier(), *((isda, finder) if first else (finder, isda)), folder=tmp_path)
        assert int(isda.criterion.covariance.count.sum()) == EPOCHS * COUNT
        assert isda.criterion.total_steps == EPOCHS * BATCHES


def test_statistics_belong_to_the_network():
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    made = fit(module, isda, max_epochs=2)
    made.fit_loop.max_epochs = EPOCHS
    made.fit(module, loader(COUNT, BATCH))
    assert int(isda.criterion.covariance.count.sum()) == EPOCHS * COUNT
    assert isda.criterion.step == isda.criterion.total_steps == EPOCHS * BATCHES
    fit(Classifier(), isda, max_epochs=1)
    assert int(isda.criterion.covariance.count.sum()) == COUNT


class Copies(pl.Callback):
    """Copies of the module that are made while it trains."""

    def on_train_batch_end(self, trainer, module, *_):
        self.deep, self.pickled = copy.deepcopy(module.criterion), pickle.loads(pickle.dumps(module.criterion))


def test_copies_that_are_made_in_training_are_plain():
    copies = Copies()
    fit(Classifier(nn.CrossEntropyLoss(label_smoothing=0.2)), ISDACallback(lambda_0=LAMBDA_0), copies)
    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    for made in (copies.deep, copies.pickled):
        expected = F.cross_entropy(logits, targets, label_smoothing=0.2)
        assert torch.equal(made(logits, targets), expected)


class Flat(pl.LightningModule):
    """A module whose layers are its own attributes."""

    def __init__(self):
        super().__init__()
        self.body, self.output = network()[:2], network()[2]
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch, index):
        return self.loss(self.output(self.body(batch[0])), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=MOMENTUM)


def test_a_classifier_is_found_by_its_name_in_the_module():
    module, isda = Flat(), ISDACallback("loss", lambda_0=LAMBDA_0, classifier="output")
    fit(module, isda)
    model, criterion = by_hand()
    assert torch.allclose(module.output.weight, model[2].weight, rtol=0, atol=1e-12)
    assert difference(isda.criterion, criterion) < 1e-12
    with pytest.raises(ValueError, match="classifier"):
        fit(Flat(), ISDACallback())


class Functional(pl.LightningModule):
    """A module that calls F.cross_entropy."""

    def __init__(self, **settings):
        super().__init__()
        self.network, self.settings, self.validated = network(), settings, []

    def training_step(self, batch, index):
        return F.cross_entropy(self.network(batch[0]), target=batch[1], **self.settings)

    def validation_step(self, batch, index):
        logits = self.network(batch[0])
        expected = -logits.log_softmax(1)[range(len(logits)), batch[1]].mean()
        self.validated.append((F.cross_entropy(logits, batch[1]), expected))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=MOMENTUM)


def test_a_module_that_calls_the_function_trains_like_a_plain_loop():
    module, isda = Functional(), ISDACallback(lambda_0=LAMBDA_0)
    trainer(isda).fit(module, loader(COUNT, BATCH), loader(COUNT, BATCH))
    model, criterion = by_hand()
    assert difference(module.network, model) < 1e-12
    assert difference(isda.criterion, criterion) < 1e-12
    assert module.validated
    assert all(abs(loss - plain) < 1e-12 for loss, plain in module.validated)
    assert not {"training_step", "validation_step"} & set(vars(module))


def test_a_module_that_calls_the_function_matches_its_strength():
    module, isda = Functional(), ISDACallback(lambda_0="auto")
    trainer(isda).fit(module, loader(COUNT, BATCH), loader(COUNT, BATCH))
    solutions = isda.criterion.state_dict()["schedule._extra_state"]
    assert int((solutions >= 0).sum()) == EPOCHS


@pytest.mark.parametrize("settings", [{"label_smoothing": 0.1}, {"reduction": "sum"}, {"weight": torch.ones(3)}])
def test_arguments_of_the_function_belong_to_a_criterion(settings):
    module = Functional(**settings)
    with pytest.raises(ValueError, match=rf"got {next(iter(settings))}: define self.criterion = nn.CrossEntropyLoss"):
        fit(module, ISDACallback(lambda_0=LAMBDA_0))
    assert not {"training_step", "validation_step"} & set(vars(module))


class TwoLosses(Classifier):
    def __init__(self):
        super().__init__()
        self.other = nn.CrossEntropyLoss()


class Weighted(nn.CrossEntropyLoss):
    def forward(self, logits, targets):
        return 2 * super().forward(logits, targets)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(zip(*samples(8), strict=True))


def test_bad_input_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="lambda_0 must be a finite number >= 0, got -1"):
        ISDACallback(lambda_0=-1)
    with pytest.raises(ValueError, match="total_steps must be a positive integer or None, got 0"):
        ISDACallback(total_steps=0)
    with pytest.raises(ValueError, match=r"of TwoLosses, got None; it has 'criterion', 'other'"):
        fit(TwoLosses(), ISDACallback())
    with pytest.raises(ValueError, match=r"of Classifier, got 'loss'; it has 'criterion'"):
        fit(Classifier(), ISDACallback("loss"))
    with pytest.raises(ValueError, match=r"of Classifier, got None; it has none"):
        fit(Classifier(nn.NLLLoss()), ISDACallback())
    with pytest.raises(ValueError, match=r"must be an nn.CrossEntropyLoss or an nn.BCEWithLogitsLoss, got Weighted"):
        fit(Classifier(Weighted()), ISDACallback())
    with pytest.raises(ValueError, match=r"total_steps must be given if the trainer does not know .* got -1"):
        fit(Classifier(), ISDACallback(), data=DataLoader(Endless(), batch_size=4))


def test_two_processes_have_the_statistics_of_one(tmp_path):
    """One import of Lightning, then two forks; together they see the batches of one process with twice the size."""
    script = Path(__file__).with_name("lightning_worker.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    model, criterion = by_hand(accumulate=2, count=30, batch_size=6)
    for rank in range(2):
        saved = torch.load(tmp_path / "number" / f"{rank}.pt", weights_only=True)
        assert saved["total_steps"] == criterion.total_steps == 3 * EPOCHS
        for name, part in (("model", model), ("statistics", criterion)):
            for key, value in part.state_dict().items():
                torch.testing.assert_close(saved[name][key], value, rtol=0, atol=1e-12, msg=f"{rank} {key}")
    first, second = (torch.load(tmp_path / "auto" / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(first["model"][key], second["model"][key]) for key in first["model"])
    solutions = [saved["statistics"]["schedule._extra_state"] for saved in (first, second)]
    assert torch.equal(*solutions)
    assert int((solutions[0] >= 0).sum()) == EPOCHS


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "lightning_digits.py"), run_name="__main__")
    assert "test accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_a_compiled_module_trains_alike():
    module, isda = Classifier(), ISDACallback(lambda_0=LAMBDA_0)
    fit(torch.compile(module, backend="eager"), isda)
    model, criterion = by_hand()
    assert difference(module.network, model) < 1e-12
    assert difference(isda.criterion, criterion) < 1e-12


@pytest.mark.slow
def test_the_older_name_of_the_library_works(tmp_path):
    """In a process that has imported pytorch_lightning, the callback is one of it."""
    text = (ROOT / "examples" / "lightning_digits.py").read_text(encoding="utf-8")
    text = text.replace("import lightning.pytorch as pl", "import pytorch_lightning as pl")
    script = tmp_path / "older.py"
    script.write_text(text + "    assert isinstance(isda, pl.Callback)\n", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "strength 0.5 at the end" in done.stdout
