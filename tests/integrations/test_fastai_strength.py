"""The strength of the fastai callback: lambda_0="auto" in the validation of each epoch, its record, warnings."""

import inspect
import warnings

import pytest
import torch
from fastai.callback.mixup import MixUp
from fastai.callback.schedule import ParamScheduler  # noqa: F401  adds lr_find to Learner
from fastai.callback.training import GradientAccumulation
from fastai.data.core import DataLoaders
from fastai.learner import Callback, CancelFitException, CancelValidException
from fastai.losses import CrossEntropyLossFlat
from fastai_runs import BATCH, BATCHES, COUNT, batches, learner, loader, network, samples
from plain_training import LAMBDA_0, difference, train_automatically
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda.integrations.fastai import ISDACallback

LONGER, HELD_OUT = 6, 11


class Strengths(Callback):
    """The strength after each epoch."""

    order = 70

    def __init__(self):
        self.after = []

    def after_epoch(self):
        self.after.append(self.learn.isda.criterion.strength)


def test_auto_trains_like_a_plain_loop_that_matches_after_each_epoch():
    strengths = Strengths()
    learn = learner(ISDACallback("auto"), strengths)
    learn.fit(LONGER)
    model = network()
    criterion, expected = train_automatically(model, list(loader(COUNT, BATCH)), LONGER, samples(HELD_OUT, seed=1))
    # In float32 the bisection may stop on either side: 1e-4 of the strength.
    assert strengths.after == pytest.approx(expected, rel=1e-3)
    assert expected[-1] > 0
    assert difference(learn.model, model) < 1e-3
    assert difference(learn.isda.criterion.covariance, criterion.covariance) < 1e-3


def test_auto_is_set_by_the_validation_of_a_fit_alone(tmp_path):
    learn = learner(ISDACallback("auto"), folder=tmp_path)
    learn.lr_find(num_it=8, show_plot=False)
    learn.fit(2)
    assert len(learn.isda.criterion.schedule.solutions) == 2
    learn.validate()
    learn.get_preds(with_loss=True)
    assert len(learn.isda.criterion.schedule.solutions) == 2


class Predictions(Callback):
    """Predictions for other data in the middle of a fit."""

    def after_train(self):
        with self.learn.no_bar():
            self.learn.get_preds(dl=batches(7, seed=2), with_loss=True, inner=True)


def test_predictions_during_a_fit_do_not_set_it():
    learn = learner(ISDACallback("auto"), Predictions())
    learn.fit(2)
    assert len(learn.isda.criterion.schedule.solutions) == 2


def test_tokens_are_matched_too():
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(6, 15, 4), torch.randint(3, (6, 15))), batch_size=2)
    learn = learner(
        ISDACallback("auto"), loss=CrossEntropyLossFlat(axis=-1), data=data, model=nn.Sequential(nn.Linear(4, 3))
    )
    learn.dls.loaders[1] = data
    learn.fit(2)
    assert len(learn.isda.criterion.schedule.solutions) == 2


class Stop(Callback):
    def before_epoch(self):
        if self.epoch == 3:
            raise CancelFitException


def test_a_resumed_training_with_auto_ends_in_the_same_bits(tmp_path):
    many = loader(520, 40)  # the samples that a match is based on are those of one epoch
    whole = learner(ISDACallback("auto"), data=many)
    whole.fit(5)
    assert whole.isda.criterion.strength > 0
    cut = learner(ISDACallback("auto"), Stop(), data=many, folder=tmp_path)
    cut.fit(5)
    cut.save("cut")
    torch.save(cut.isda.state_dict(), tmp_path / "statistics.pt")
    learn = learner(ISDACallback("auto"), data=many, folder=tmp_path)
    learn.create_opt()
    learn.load("cut")
    learn.isda.load_state_dict(torch.load(tmp_path / "statistics.pt"))
    learn.fit(5, start_epoch=3)
    assert learn.isda.criterion.schedule.solutions == whole.isda.criterion.schedule.solutions
    assert difference(learn.model, whole.model) == 0


def test_auto_without_an_evaluation_is_refused_before_training():
    learn = learner(ISDACallback("auto"))
    learn.dls = DataLoaders(batches(COUNT), device="cpu")
    with pytest.raises(ValueError, match="lambda_0='auto' needs an evaluation: pass DataLoaders with a validation set"):
        learn.fit(1)
    assert not learn.model[2]._forward_hooks
    with pytest.raises(ValueError, match="lambda_0 must be a number with MixUp"):
        learner(ISDACallback("auto"), MixUp()).fit(1)
    with pytest.raises(ValueError, match="total_steps must not be given with lambda_0='auto', got 5"):
        ISDACallback("auto", 5)


def test_the_strength_of_every_batch_is_recorded():
    learn = learner(ISDACallback(LAMBDA_0))
    for _ in range(2):  # of the last fit
        learn.fit(2)
        expected = [LAMBDA_0 * step / (2 * BATCHES) for step in range(2 * BATCHES)]
        assert learn.isda.strengths == pytest.approx(expected)
    assert len(learn.isda.strengths) == len(learn.recorder.lrs)
    constant = learner(ISDACallback(LAMBDA_0, schedule="constant"))
    constant.fit(1)
    assert constant.isda.strengths == [LAMBDA_0] * BATCHES


def test_settings_of_the_criterion_are_named():
    names = ["schedule", "covariance", "bound", "rank", "decay", "max_ratio"]
    parameters = inspect.signature(ISDACallback.__init__).parameters
    assert [name for name in names if name not in parameters] == []


def warnings_of(learn, epochs):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(epochs)
    texts = [str(warning.message) for warning in seen]
    return [text for text in texts if "strength" in text or "total_steps" in text]


class NoValidation(Callback):
    def before_validate(self):
        raise CancelValidException


def test_a_strength_that_stays_at_0_is_warned_of_once():
    (text,) = warnings_of(learner(ISDACallback("auto"), NoValidation()), 3)
    assert "is still 0 at the end of the first epoch, because no evaluation has set it" in text
    (text,) = warnings_of(learner(ISDACallback(LAMBDA_0), GradientAccumulation(COUNT + 1)), 3)
    assert "although lambda_0=4: no step of the optimiser was counted" in text
    (text,) = warnings_of(learner(ISDACallback(LAMBDA_0, total_steps=1000)), 3)
    assert "will end at 0.084 instead of lambda_0=4, because total_steps=1000 where the training has 21 steps" in text


@pytest.mark.parametrize("settings", [{}, {"lambda_0": "auto"}, {"schedule": "constant"}, {"lambda_0": 0.0}])
def test_other_fits_warn_of_nothing(settings):
    assert warnings_of(learner(ISDACallback(**settings)), 2) == []
