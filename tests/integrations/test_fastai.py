"""The fastai callback against a plain loop, in the Learner itself."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fastai.callback.mixup import MixUp
from fastai.callback.progress import ProgressCallback
from fastai.callback.schedule import ParamScheduler  # noqa: F401  adds lr_find to Learner
from fastai.callback.training import GradientAccumulation
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader as FastaiLoader
from fastai.imports import noop
from fastai.learner import Callback, CancelFitException, Learner, load_learner
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, LabelSmoothingCrossEntropyFlat
from fastai.optimizer import OptimWrapper
from plain_training import (
    BATCH,
    BATCHES,
    CLASSES,
    COUNT,
    EPOCHS,
    LAMBDA_0,
    MOMENTUM,
    RATE,
    TOLERANCE,
    difference,
    loader,
    network,
    samples,
    train_by_hand,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDABCELoss, ISDALoss
from isda.integrations.fastai import ISDACallback


def learner(*callbacks, loss=None, folder=None, data=None, model=None):
    """The training of the plain loop, as fastai is told of it."""
    optimizer = partial(OptimWrapper, opt=partial(torch.optim.SGD, momentum=MOMENTUM))
    data, loss = data or loader(), loss or CrossEntropyLossFlat()
    loaders = DataLoaders(data, data, device="cpu")
    settings = {"opt_func": optimizer, "lr": RATE, "cbs": list(callbacks), "path": folder}
    made = Learner(loaders, model or network(), loss, **settings)
    made.logger = noop
    return made.remove_cb(ProgressCallback)


def test_it_trains_like_a_plain_loop_and_records_strength_and_variance():
    learn = learner(ISDACallback(LAMBDA_0))
    learn.fit(EPOCHS)
    model, criterion = train_by_hand()
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE
    assert list(learn.recorder.metric_names[3:5]) == ["isda_strength", "isda_margin_variance"]
    columns = [row[2:] for row in learn.recorder.values]
    assert [strength for strength, _ in columns] == pytest.approx([LAMBDA_0 * epoch / EPOCHS for epoch in (1, 2, 3)])
    assert all(variance > 0 for _, variance in columns)
    plain = learner()
    plain.fit(EPOCHS)
    assert difference(plain.model, model) > 100 * TOLERANCE  # the strength is one that shows


def test_accumulated_gradients_change_no_count_of_forwards():
    learn = learner(ISDACallback(LAMBDA_0), GradientAccumulation(8))
    learn.fit(EPOCHS)
    assert learn.isda.criterion.step == learn.isda.criterion.total_steps == EPOCHS * BATCHES


def test_settings_go_to_the_criterion_and_those_of_the_loss_function_stay():
    weight = torch.tensor([1.0, 2.0, 0.5])
    loss = CrossEntropyLossFlat(weight=weight, label_smoothing=0.1)
    learn = learner(ISDACallback(1.0, total_steps=5, covariance="diagonal", bound="tilted"), loss=loss)
    learn.fit(1)
    settings = {"covariance": "diagonal", "bound": "tilted", "class_weight": weight, "label_smoothing": 0.1}
    model, criterion = train_by_hand(lambda_0=1.0, total_steps=5, epochs=1, **settings)
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE


def test_several_labels_per_sample():
    x, y = samples()
    data = DataLoader(TensorDataset(x, F.one_hot(y, CLASSES).float()), batch_size=BATCH)
    learn = learner(ISDACallback(LAMBDA_0), loss=BCEWithLogitsLossFlat(), data=data)
    learn.fit(EPOCHS)
    model, criterion = train_by_hand(data, kind=ISDABCELoss)
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


def test_validation_is_plain_cross_entropy_and_the_learner_is_given_back():
    loss, judge = CrossEntropyLossFlat(), Judge()
    learn = learner(ISDACallback(LAMBDA_0), judge, loss=loss)
    learn.fit(EPOCHS)
    assert [seen for seen, _ in judge.seen] == pytest.approx([plain for _, plain in judge.seen])
    assert len(judge.seen) == EPOCHS * BATCHES
    assert learn.loss_func is loss
    assert not learn.model[2]._forward_hooks
    assert len(learn.validate()) == 1
    probabilities, _ = learn.get_preds(dl=learn.dls.valid)
    with torch.no_grad():
        assert torch.allclose(probabilities, learn.model(samples()[0]).softmax(1))
    assert int(learn.isda.criterion.covariance.count.sum()) == EPOCHS * COUNT


def test_looking_for_a_learning_rate_leaves_no_trace_and_statistics_go_on_from_fit_to_fit(tmp_path):
    learn = learner(ISDACallback(LAMBDA_0), folder=tmp_path)
    learn.lr_find(num_it=8, show_plot=False)
    assert learn.isda.criterion is None
    for _ in range(2):
        learn.fit(1)
    assert int(learn.isda.criterion.covariance.count.sum()) == 2 * COUNT
    assert learn.isda.criterion.step == learn.isda.criterion.total_steps == BATCHES


class Stop(Callback):
    """Ends a fit before its last epoch: by fastai's own exception, or by an error."""

    def __init__(self, error):
        self.error = error

    def before_epoch(self):
        if self.epoch == 2:
            raise self.error


def test_a_resumed_training_ends_as_one_that_was_never_interrupted(tmp_path):
    cut = learner(ISDACallback(LAMBDA_0), Stop(CancelFitException()), folder=tmp_path)
    cut.fit(EPOCHS)
    cut.save("cut")
    torch.save(cut.isda.state_dict(), tmp_path / "statistics.pt")
    learn = learner(ISDACallback(LAMBDA_0), folder=tmp_path)
    learn.create_opt()
    learn.load("cut")
    learn.isda.load_state_dict(torch.load(tmp_path / "statistics.pt"))
    learn.fit(EPOCHS, start_epoch=2)
    model, criterion = train_by_hand()
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


class Items(list):
    """A data set of fastai, which can be asked for an empty one of its kind."""

    def new_empty(self):
        return Items()


def test_an_exported_learner_keeps_the_statistics(tmp_path):
    data = FastaiLoader(Items(zip(*samples(), strict=True)), bs=BATCH, num_workers=0)
    learn = learner(ISDACallback(LAMBDA_0), folder=tmp_path, data=data)
    learn.fit(1)
    learn.export("with.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_learner(tmp_path / "with.pkl")
    assert torch.equal(loaded.isda.state_dict()["covariance.scatter"], learn.isda.criterion.covariance.scatter)


class KnownMix(MixUp):
    """Mixup with shares that are known."""

    def before_batch(self):
        super().before_batch()
        self.kept = [*getattr(self, "kept", []), (self.xb[0].clone(), self.yb1[0], self.yb[0], self.lam)]


def test_mixup_counts_a_pass_once():
    mix = KnownMix(0.4)
    learn = learner(ISDACallback(LAMBDA_0), mix)
    learn.fit(1)
    model = network()
    criterion = ISDALoss.attach(model, LAMBDA_0, BATCHES, reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for x, first, second, share in mix.kept:
        logits = model(x)
        torch.lerp(criterion(logits, first), criterion(logits, second), share).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    criterion.detach()
    assert difference(learn.model, model) < TOLERANCE
    assert difference(learn.isda.criterion, criterion) < TOLERANCE


@pytest.mark.parametrize("axis", [1, -1])
def test_pixels_and_words(axis):
    """Classes in the second dimension (segmentation) or in the last (tokens)."""
    x, y = torch.randn(6, 4, 3, 5), torch.randint(CLASSES, (6, 3, 5))
    head = nn.Conv2d(4, CLASSES, 1)
    if axis == -1:
        x, y, head = x.flatten(2).transpose(1, 2).contiguous(), y.flatten(1), nn.Linear(4, CLASSES)
    data = DataLoader(TensorDataset(x, y), batch_size=2)
    learn = learner(ISDACallback(LAMBDA_0), loss=CrossEntropyLossFlat(axis=axis), data=data, model=nn.Sequential(head))
    learn.fit(1)
    assert int(learn.isda.criterion.covariance.count.sum()) == y.numel()
    rows = x.movedim(axis, -1).flatten(0, -2)
    means = torch.stack([rows[y.flatten() == label].mean(0) for label in range(CLASSES)])
    assert torch.allclose(learn.isda.criterion.covariance.mean, means, atol=1e-5)


def test_bad_input_is_refused_in_one_sentence():
    for loss, name in ((LabelSmoothingCrossEntropyFlat(), "LabelSmoothingCrossEntropy"), (F.cross_entropy, "function")):
        with pytest.raises(ValueError, match=f"the loss function must be a CrossEntropyLossFlat .* got {name}"):
            learner(ISDACallback(), loss=loss).fit(1)
    with pytest.raises(ValueError, match="classifier must be or name a linear layer of the model"):
        learner(ISDACallback(classifier="output")).fit(1)
