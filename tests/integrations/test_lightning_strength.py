"""The strength of the Lightning callback: lambda_0="auto", the logs, settings by LightningCLI, warnings."""

import csv
import inspect
import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning_runs import BATCH, BATCHES, COUNT, Classifier, Interruption, trainer
from plain_training import LAMBDA_0, RATE, difference, loader, network, samples, train_automatically
from torch import nn

from isda.integrations.lightning import ISDACallback

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

LONGER, HELD_OUT = 6, 11


def held_out():
    return loader(HELD_OUT, BATCH, seed=1)


class Strengths(pl.Callback):
    """The strength after each epoch."""

    def __init__(self, isda):
        self.isda, self.seen = isda, []

    def on_train_epoch_end(self, trainer, module):
        self.seen.append(self.isda.criterion.strength)


def test_auto_trains_like_a_plain_loop_that_matches_after_each_epoch():
    module, isda = Classifier(), ISDACallback(lambda_0="auto")
    strengths = Strengths(isda)
    trainer(isda, strengths, max_epochs=LONGER).fit(module, loader(COUNT, BATCH), held_out())
    model = network()
    criterion, expected = train_automatically(model, list(loader(COUNT, BATCH)), LONGER, samples(HELD_OUT, seed=1))
    assert strengths.seen == pytest.approx(expected, rel=1e-9)
    assert expected[-1] > 0
    assert difference(module.network, model) < 1e-9
    assert difference(isda.criterion.covariance, criterion.covariance) < 1e-9


def test_auto_is_set_by_the_validation_epochs_of_a_fit_alone():
    module, isda = Classifier(), ISDACallback(lambda_0="auto")
    fitted = trainer(isda, max_epochs=2, num_sanity_val_steps=2)
    fitted.fit(module, loader(COUNT, BATCH), held_out())
    assert len(isda.criterion.schedule.solutions) == 2
    fitted.validate(module, held_out(), verbose=False)
    assert len(isda.criterion.schedule.solutions) == 2


def test_a_resumed_training_with_auto_ends_in_the_same_bits(tmp_path):
    many = loader(520, 40)  # the samples that a match is based on are those of one epoch
    whole, isda = Classifier(), ISDACallback(lambda_0="auto")
    trainer(isda, max_epochs=5).fit(whole, many, held_out())
    assert isda.criterion.strength > 0
    saving = ModelCheckpoint(tmp_path, save_last=True)
    with pytest.raises(OSError, match="power"):
        trainer(ISDACallback(lambda_0="auto"), Interruption(3), saving, max_epochs=5, enable_checkpointing=True).fit(
            Classifier(), many, held_out()
        )
    resumed, again = Classifier(), ISDACallback(lambda_0="auto")
    trainer(again, max_epochs=5).fit(resumed, many, held_out(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.criterion.schedule.solutions == isda.criterion.schedule.solutions
    assert difference(resumed, whole) == 0
    assert difference(again.criterion, isda.criterion) == 0


class Layers(pl.LightningModule):
    """Its layers are its own attributes, and it has no forward."""

    def __init__(self):
        super().__init__()
        self.body, self.output, self.loss = network()[:2], network()[2], nn.CrossEntropyLoss()

    def training_step(self, batch, index):
        return self.loss(self.output(self.body(batch[0])), batch[1])

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Forward(Layers):
    """The same with a forward."""

    def forward(self, x):
        return self.output(self.body(x))

    def training_step(self, batch, index):
        return self.loss(self(batch[0]), batch[1])

    validation_step = training_step


def test_auto_runs_a_forward_of_the_module_or_refuses_it():
    isda = ISDACallback(lambda_0="auto", classifier="output")
    trainer(isda, max_epochs=1).fit(Forward(), loader(COUNT, BATCH), held_out())
    assert len(isda.criterion.schedule.solutions) == 1
    with pytest.raises(ValueError, match="runs the network again on training inputs: put all layers into one child of"):
        trainer(ISDACallback(lambda_0="auto", classifier="output")).fit(Layers(), loader(COUNT, BATCH), held_out())


def test_auto_takes_the_name_of_a_layer_of_the_network():
    isda = ISDACallback(lambda_0="auto", classifier="network.2")
    trainer(isda, max_epochs=1).fit(Classifier(), loader(COUNT, BATCH), held_out())
    assert len(isda.criterion.schedule.solutions) == 1


def test_auto_without_an_evaluation_is_refused_before_training():
    module = Classifier()
    with pytest.raises(ValueError, match="lambda_0='auto' needs an evaluation: pass val_dataloaders"):
        trainer(ISDACallback(lambda_0="auto")).fit(module, loader(COUNT, BATCH))
    assert not module.network[2]._forward_hooks
    with pytest.raises(ValueError, match="total_steps must not be given with lambda_0='auto', got 5"):
        ISDACallback(lambda_0="auto", total_steps=5)
    with pytest.raises(ValueError, match="lambda_0 must be a finite number >= 0 or 'auto', got 'large'"):
        ISDACallback(lambda_0="large")


def test_a_constant_strength():
    isda = ISDACallback(lambda_0=LAMBDA_0, schedule="constant")
    strengths = Strengths(isda)
    trainer(isda, strengths, max_epochs=2).fit(Classifier(), loader(COUNT, BATCH))
    assert strengths.seen == [LAMBDA_0] * 2
    with pytest.raises(ValueError, match="total_steps must not be given with schedule='constant', got 5"):
        ISDACallback(total_steps=5, schedule="constant")


# -- logs --------------------------------------------------------------------------------------------------------------


def test_the_strength_is_logged_with_every_batch(tmp_path):
    isda = ISDACallback(lambda_0=LAMBDA_0)
    logger = CSVLogger(tmp_path, name="", version="")
    fitted = trainer(isda, max_epochs=2, logger=logger, log_every_n_steps=1)
    fitted.fit(Classifier(), loader(COUNT, BATCH))
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open(encoding="utf-8")))
    expected = [LAMBDA_0 * step / (2 * BATCHES) for step in range(2 * BATCHES)]
    assert [float(row["isda/strength"]) for row in rows] == pytest.approx(expected)
    assert "isda/strength" in fitted.callback_metrics


class TwoHeads(Classifier):
    def __init__(self):
        super().__init__()
        self.other, self.second = nn.CrossEntropyLoss(), nn.Linear(6, 3).double()

    def training_step(self, batch, index):
        return super().training_step(batch, index) + self.other(self.second(batch[0]), batch[1])


def test_two_criteria_have_two_names_in_the_logs():
    first = ISDACallback("criterion", lambda_0=LAMBDA_0, classifier="network.2")
    second = ISDACallback("other", lambda_0=1.0, classifier="second")
    fitted = trainer(first, second, max_epochs=1)
    fitted.fit(TwoHeads(), loader(COUNT, BATCH))
    logged = {name: float(value) for name, value in fitted.callback_metrics.items() if name.startswith("isda")}
    share = (BATCHES - 1) / BATCHES
    assert logged == pytest.approx({"isda/strength/criterion": LAMBDA_0 * share, "isda/strength/other": share})


# -- settings ----------------------------------------------------------------------------------------------------------

NAMED = ["schedule", "covariance", "bound", "rank", "decay", "tilt_steps", "max_ratio", "validate"]


def test_settings_of_the_criterion_are_named_with_their_types():
    """What jsonargparse, and so LightningCLI, accepts."""
    parameters = inspect.signature(ISDACallback.__init__).parameters
    assert [name for name in NAMED if name not in parameters or not parameters[name].annotation] == []


def test_lightning_cli_accepts_the_settings_of_the_criterion():
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    arguments = [
        "--trainer.callbacks=isda.integrations.lightning.ISDACallback",
        "--trainer.callbacks.lambda_0=auto",
        "--trainer.callbacks.covariance=low_rank",
        "--trainer.callbacks.rank=2",
        "--trainer.callbacks.bound=tilted",
        "--trainer.callbacks.decay=0.9",
    ]
    quiet = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 1}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False}
    cli = LightningCLI(Classifier, run=False, trainer_defaults=quiet, args=arguments, save_config_callback=None)
    (isda,) = (callback for callback in cli.trainer.callbacks if isinstance(callback, ISDACallback))
    cli.trainer.fit(cli.model, loader(COUNT, BATCH), held_out())
    assert isda.criterion.bound == "tilted"
    assert isda.criterion.covariance.rank == 2
    assert isda.criterion.covariance.decay == 0.9
    assert len(isda.criterion.schedule.solutions) == 1


# -- warnings ----------------------------------------------------------------------------------------------------------


class Silent(Classifier):
    def validation_step(self, batch, index):
        self.network(batch[0])


def test_a_validation_step_without_the_criterion_is_warned_of_once():
    with pytest.warns(UserWarning, match=r"'auto' is still 0 .* call self.criterion\(logits, targets\) in") as seen:
        trainer(ISDACallback(lambda_0="auto"), max_epochs=3).fit(Silent(), loader(COUNT, BATCH), held_out())
    assert sum("still 0" in str(warning.message) for warning in seen) == 1


def test_a_ramp_much_longer_than_the_training_is_warned_of_once():
    with pytest.warns(UserWarning, match="the strength will end at 0.0[0-9]+ instead of lambda_0=4") as seen:
        trainer(ISDACallback(lambda_0=LAMBDA_0, total_steps=1000), max_epochs=3).fit(Classifier(), loader(COUNT, BATCH))
    assert sum("will end at" in str(warning.message) for warning in seen) == 1


@pytest.mark.parametrize(
    "settings", [{"lambda_0": LAMBDA_0}, {"lambda_0": "auto"}, {"schedule": "constant"}, {"lambda_0": 0}]
)
def test_other_fits_warn_of_nothing(settings):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trainer(ISDACallback(**settings), max_epochs=2).fit(Classifier(), loader(COUNT, BATCH), held_out())
    assert [text for text in (str(warning.message) for warning in seen) if "strength" in text or "steps" in text] == []
