"""The skorch classifier against a plain loop: probabilities, steps, saved parameters, grid search, strength."""

import copy
import pickle
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_training import (
    LAMBDA_0,
    MOMENTUM,
    RATE,
    difference,
    loader,
    network,
    samples,
    train_automatically,
    train_by_hand,
)
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Checkpoint
from skorch.dataset import ValidSplit
from skorch.helper import predefined_split
from torch import nn
from torch.utils.data import TensorDataset

from isda.integrations.skorch import ISDANeuralNetClassifier
from isda.losses import ExplicitLoss

ROOT = Path(__file__).parents[2]
EPOCHS, COUNT, BATCH, BATCHES = 3, 27, 4, 7
X, Y = (part.numpy() for part in samples(COUNT))


def net(module=network, **settings):
    """The training of the plain loop, as skorch is told of it."""
    optimiser = {"optimizer": torch.optim.SGD, "lr": RATE, "optimizer__momentum": MOMENTUM}
    fixed = {"max_epochs": EPOCHS, "batch_size": BATCH, "train_split": None, "verbose": 0}
    return ISDANeuralNetClassifier(module, **{"criterion__lambda_0": LAMBDA_0, **optimiser, **fixed, **settings})


def by_hand(epochs=EPOCHS, total_steps=EPOCHS * BATCHES):
    model, batches = network(), list(loader(COUNT, BATCH)) * epochs
    return model, train_by_hand(model, batches, set(range(len(batches))), total_steps)


def test_it_trains_like_a_plain_loop():
    trained = net().fit(X, Y)
    model, criterion = by_hand()
    assert difference(trained.module_, model) < 1e-12
    assert torch.equal(trained.criterion_.covariance.scatter, criterion.covariance.scatter)
    assert trained.criterion_.total_steps == trained.criterion_.step == EPOCHS * BATCHES
    weak = net(criterion__lambda_0=0.0).fit(X, Y)
    assert difference(weak.module_, model) > 1e-3  # the strength is one that shows


def test_predict_proba_gives_probabilities():
    trained = net().fit(X, Y)
    with torch.no_grad():
        logits = trained.module_.eval()(torch.from_numpy(X))
    probabilities = trained.predict_proba(X)
    np.testing.assert_allclose(probabilities, logits.softmax(1).numpy(), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(trained.predict(X), logits.argmax(1).numpy())
    np.testing.assert_allclose(trained.set_params(predict_nonlinearity=None).predict_proba(X), logits.numpy())


def test_other_criteria_are_treated_as_ever():
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1}
    trained = ISDANeuralNetClassifier(network, **settings).fit(X, Y)
    assert type(trained.criterion_) is nn.CrossEntropyLoss
    np.testing.assert_allclose(trained.predict_proba(X).sum(1), 1)
    explicit = net(criterion=ExplicitLoss, criterion__samples=2).fit(X, Y)
    assert isinstance(explicit.criterion_, ExplicitLoss)
    np.testing.assert_allclose(explicit.predict_proba(X).sum(1), 1)


def test_the_loss_that_judges_is_plain_cross_entropy():
    trained = net(train_split=ValidSplit(3, stratified=False)).fit(X, Y)
    assert int(trained.criterion_.covariance.count.sum()) == EPOCHS * 18
    assert trained.criterion_.total_steps == EPOCHS * 5
    with torch.no_grad():
        logits = trained.module_.eval()(torch.from_numpy(X[:9]))
    expected = nn.functional.cross_entropy(logits, torch.from_numpy(Y[:9])).item()
    assert trained.history[-1, "valid_loss"] == pytest.approx(expected, abs=1e-12)


def half():
    """A net that has been trained for two of its three epochs."""
    return net().fit(X, Y, epochs=2)


def check_whole(finished):
    model, criterion = by_hand()
    assert difference(finished.module_, model) < 1e-12
    assert difference(finished.criterion_.covariance, criterion.covariance) < 1e-12
    assert finished.criterion_.step == finished.criterion_.total_steps == EPOCHS * BATCHES


def test_partial_fit_goes_on():
    check_whole(half().partial_fit(X, Y, epochs=1))


@pytest.mark.parametrize("safetensors", [False, True])
def test_saved_parameters_keep_the_statistics(safetensors, tmp_path):
    files = {name: tmp_path / name for name in ("f_params", "f_optimizer", "f_criterion", "f_history")}
    if safetensors:
        files = {name: files[name] for name in ("f_params", "f_criterion")}
        half().save_params(**files, use_safetensors=True)
        loaded = net().initialize()
        loaded.load_params(**files, use_safetensors=True)
        assert int(loaded.criterion_.covariance.count.sum()) == 2 * COUNT
        assert loaded.criterion_.step == 2 * BATCHES
        return
    half().save_params(**files)
    loaded = net().initialize()
    loaded.load_params(**files)
    check_whole(loaded.partial_fit(X, Y, epochs=1))


def test_checkpoints_keep_the_statistics(tmp_path):
    kept = Checkpoint(monitor=None, dirname=tmp_path)
    net(callbacks=[kept]).fit(X, Y, epochs=2)
    loaded = net().initialize()
    loaded.load_params(checkpoint=kept)
    check_whole(loaded.partial_fit(X, Y, epochs=1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_and_pickles_go_on(copied):
    first = half()
    second = copied(first)
    check_whole(second.partial_fit(X, Y, epochs=1))
    assert int(first.criterion_.covariance.count.sum()) == 2 * COUNT
    check_whole(first.partial_fit(X, Y, epochs=1))


def test_fitting_again_begins_anew():
    trained = net().fit(X, Y)
    assert trained.set_params(max_epochs=2).fit(X, Y).criterion_.step == 2 * BATCHES
    model, _ = by_hand(2, 2 * BATCHES)
    assert difference(trained.module_, model) < 1e-12
    changed = trained.set_params(criterion__lambda_0=1.0)
    assert changed.criterion_.step == 0
    assert changed.partial_fit(X, Y).criterion_.strength == 1.0


def test_total_steps_can_be_given():
    assert net(criterion__total_steps=100).fit(X, Y).criterion_.strength == LAMBDA_0 * 21 / 100


def test_a_grid_of_strengths_is_searched():
    grid = {"criterion__lambda_0": [0.0, LAMBDA_0], "criterion__covariance": ["full", "diagonal"]}
    searched = GridSearchCV(net(), grid, cv=2, scoring="neg_log_loss").fit(X, Y)
    scores = searched.cv_results_["mean_test_score"]
    assert scores[0] == scores[2]  # without strength the covariance does not matter
    assert len(set(np.round(scores, 6))) == 3
    assert searched.best_estimator_.criterion_.schedule.lambda_0 == searched.best_params_["criterion__lambda_0"]
    assert clone(net(criterion__bound="tilted")).get_params()["criterion__bound"] == "tilted"


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.output = network()[:2], network()[2]

    def forward(self, x):
        return self.output(self.body(x))


def test_a_classifier_is_found_by_its_name():
    trained = net(Named, criterion__classifier="output").fit(X, Y)
    model, _ = by_hand()
    assert torch.allclose(trained.module_.output.weight, model[2].weight, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="classifier"):
        net(Named).fit(X, Y)


def test_bad_input_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"ISDALoss has no setting 'lamda_0'.*; did you mean 'lambda_0'"):
        net(criterion__lamda_0=1.0).fit(X, Y)
    with pytest.raises(ValueError, match="criterion__total_steps must be given if the number of batches"):
        net(iterator_train=lambda *_, **__: (batch for batch in loader(COUNT, BATCH))).fit(X, Y)
    with pytest.raises(ValueError, match="Softmax"):
        net(lambda: nn.Sequential(*network(), nn.Softmax(1)), criterion__classifier="2").fit(X, Y)


# -- the strength ------------------------------------------------------------------------------------------------------

LONGER, HELD_OUT = 6, 11


def automatic(**settings):
    held_out = predefined_split(TensorDataset(*samples(HELD_OUT, seed=1)))
    return net(**{"criterion__lambda_0": "auto", "train_split": held_out, "max_epochs": LONGER, **settings})


def test_auto_trains_like_a_plain_loop_that_matches_after_each_epoch():
    trained = automatic().fit(X, Y)
    model = network()
    criterion, expected = train_automatically(model, list(loader(COUNT, BATCH)), LONGER, samples(HELD_OUT, seed=1))
    assert trained.history[:, "isda_strength"] == pytest.approx([0.0, *expected[:-1]], rel=1e-9)
    assert trained.criterion_.strength == pytest.approx(expected[-1], rel=1e-9)
    assert expected[-1] > 0
    assert difference(trained.module_, model) < 1e-9
    assert difference(trained.criterion_.covariance, criterion.covariance) < 1e-9


def test_predictions_do_not_set_it():
    trained = automatic(max_epochs=2).fit(X, Y)
    trained.predict_proba(X)
    trained.score(X, Y)
    assert len(trained.criterion_.schedule.solutions) == 2


@pytest.mark.parametrize("way", ["parameters", "pickle"])
def test_a_resumed_training_with_auto_ends_in_the_same_bits(way, tmp_path):
    x, y = (part.numpy() for part in samples(520))  # the samples that a match is based on are those of one epoch
    settings = {"batch_size": 40, "max_epochs": 5}
    whole = automatic(**settings).fit(x, y)
    assert whole.criterion_.strength > 0
    first = automatic(**settings).fit(x, y, epochs=3)
    if way == "pickle":
        second = pickle.loads(pickle.dumps(first))
    else:
        files = {name: tmp_path / name for name in ("f_params", "f_optimizer", "f_criterion", "f_history")}
        first.save_params(**files)
        second = automatic(**settings).initialize()
        second.load_params(**files)
    second.partial_fit(x, y, epochs=2)
    assert second.criterion_.schedule.solutions == whole.criterion_.schedule.solutions
    assert difference(second.module_, whole.module_) == 0


def test_auto_without_an_evaluation_is_refused_before_training():
    untrained = automatic(train_split=None).initialize()
    with pytest.raises(ValueError, match="lambda_0='auto' needs an evaluation: train_split must be a split"):
        untrained.partial_fit(X, Y)
    assert int(untrained.criterion_.covariance.count.sum()) == 0


def test_the_history_has_the_strength_of_each_epoch(capsys):
    trained = net(max_epochs=3, verbose=1).fit(X, Y)
    assert trained.history[:, "isda_strength"] == pytest.approx([LAMBDA_0 * epoch / 3 for epoch in (1, 2, 3)])
    assert "isda_strength" in capsys.readouterr().out
    other = net(criterion=torch.nn.CrossEntropyLoss, criterion__lambda_0=None)
    del other.criterion__lambda_0
    assert "isda_strength" not in other.fit(X, Y).history[-1]


def test_a_constant_strength():
    trained = net(criterion__schedule="constant").fit(X, Y)
    assert trained.history[:, "isda_strength"] == [LAMBDA_0] * 3


def warnings_of(untrained):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        untrained.fit(X, Y)
    texts = [str(warning.message) for warning in seen]
    return [text for text in texts if "strength" in text or "total_steps" in text]


def test_a_ramp_much_longer_than_the_training_is_warned_of_once():
    (text,) = warnings_of(net(criterion__total_steps=1000))
    assert f"because total_steps=1000 where the training has {3 * BATCHES} steps" in text


@pytest.mark.parametrize("settings", [{}, {"criterion__schedule": "constant"}, {"criterion__lambda_0": 0.0}])
def test_other_fits_warn_of_nothing(settings):
    assert warnings_of(net(**settings)) == []
    assert warnings_of(automatic()) == []


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "skorch_digits.py"), run_name="__main__")
    assert "test accuracy" in capsys.readouterr().out
