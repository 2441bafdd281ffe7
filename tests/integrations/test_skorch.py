"""The skorch classifier against a plain loop: probabilities, saved parameters, grid search, history."""

import copy
import pickle

import numpy as np
import pytest
import torch
from plain_training import (
    BATCH,
    BATCHES,
    COUNT,
    EPOCHS,
    LAMBDA_0,
    MOMENTUM,
    RATE,
    TOLERANCE,
    difference,
    network,
    samples,
    train_by_hand,
)
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Checkpoint
from skorch.dataset import ValidSplit
from torch import nn

from isda import ExplicitLoss
from isda.integrations.skorch import ISDANeuralNetClassifier

X, Y = (part.numpy() for part in samples())


def net(module=network, **settings):
    """The training of the plain loop, as skorch is told of it."""
    optimizer = {"optimizer": torch.optim.SGD, "lr": RATE, "optimizer__momentum": MOMENTUM}
    fixed = {"max_epochs": EPOCHS, "batch_size": BATCH, "train_split": None, "verbose": 0}
    return ISDANeuralNetClassifier(module, **{"criterion__lambda_0": LAMBDA_0, **optimizer, **fixed, **settings})


def assert_whole(finished):
    model, criterion = train_by_hand()
    assert difference(finished.module_, model) < TOLERANCE
    assert difference(finished.criterion_, criterion) < TOLERANCE
    assert finished.criterion_.total_steps == EPOCHS * BATCHES


def test_it_trains_like_a_plain_loop_and_the_history_has_strength_and_variance():
    trained = net().fit(X, Y)
    assert_whole(trained)
    expected = [LAMBDA_0 * epoch / EPOCHS for epoch in (1, 2, 3)]
    assert trained.history[:, "isda_strength"] == pytest.approx(expected)
    assert all(variance > 0 for variance in trained.history[:, "isda_margin_variance"])
    assert net(criterion__total_steps=100).fit(X, Y).criterion_.strength == pytest.approx(LAMBDA_0 * 0.21)


def test_predict_proba_gives_probabilities():
    trained = net().fit(X, Y)
    with torch.no_grad():
        logits = trained.module_.eval()(torch.from_numpy(X))
    np.testing.assert_allclose(trained.predict_proba(X), logits.softmax(1).numpy(), atol=1e-6)
    np.testing.assert_array_equal(trained.predict(X), logits.argmax(1).numpy())
    np.testing.assert_allclose(trained.set_params(predict_nonlinearity=None).predict_proba(X), logits.numpy())


def test_other_criteria_are_treated_as_ever():
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1}
    trained = ISDANeuralNetClassifier(network, **settings).fit(X, Y)
    assert type(trained.criterion_) is nn.CrossEntropyLoss
    assert "isda_strength" not in trained.history[-1]
    explicit = net(criterion=ExplicitLoss, criterion__samples=2).fit(X, Y)
    np.testing.assert_allclose(explicit.predict_proba(X).sum(1), 1, atol=1e-6)


def test_the_loss_that_judges_is_plain_cross_entropy():
    trained = net(train_split=ValidSplit(3, stratified=False)).fit(X, Y)
    assert int(trained.criterion_.covariance.count.sum()) == EPOCHS * 18
    assert trained.criterion_.total_steps == EPOCHS * 5
    with torch.no_grad():
        logits = trained.module_.eval()(torch.from_numpy(X[:9]))
    expected = nn.functional.cross_entropy(logits, torch.from_numpy(Y[:9])).item()
    assert trained.history[-1, "valid_loss"] == pytest.approx(expected, abs=1e-5)


def half():
    """A net that has been trained for two of its three epochs."""
    return net().fit(X, Y, epochs=2)


def test_saved_parameters_keep_the_statistics(tmp_path):
    files = {name: tmp_path / name for name in ("f_params", "f_optimizer", "f_criterion", "f_history")}
    half().save_params(**files)
    loaded = net().initialize()
    loaded.load_params(**files)
    assert_whole(loaded.partial_fit(X, Y, epochs=1))


def test_checkpoints_keep_the_statistics(tmp_path):
    kept = Checkpoint(monitor=None, dirname=tmp_path)
    net(callbacks=[kept]).fit(X, Y, epochs=2)
    loaded = net().initialize()
    loaded.load_params(checkpoint=kept)
    assert_whole(loaded.partial_fit(X, Y, epochs=1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_and_pickles_go_on(copied):
    first = half()
    assert_whole(copied(first).partial_fit(X, Y, epochs=1))
    assert int(first.criterion_.covariance.count.sum()) == 2 * COUNT
    assert_whole(first.partial_fit(X, Y, epochs=1))


def test_fitting_again_begins_anew():
    trained = net().fit(X, Y)
    assert trained.set_params(max_epochs=2).fit(X, Y).criterion_.step == 2 * BATCHES
    assert trained.set_params(criterion__lambda_0=1.0).partial_fit(X, Y).criterion_.strength == pytest.approx(1.0)


def test_a_grid_of_strengths_is_searched():
    grid = {"criterion__lambda_0": [0.0, LAMBDA_0], "criterion__covariance": ["full", "diagonal"]}
    searched = GridSearchCV(net(), grid, cv=2, scoring="neg_log_loss").fit(X, Y)
    scores = searched.cv_results_["mean_test_score"]
    assert scores[0] == pytest.approx(scores[2])  # without strength the covariance does not matter
    assert len(set(np.round(scores, 6))) == 3
    assert searched.best_estimator_.criterion_.lambda_0 == searched.best_params_["criterion__lambda_0"]
    assert clone(net(criterion__bound="tilted")).get_params()["criterion__bound"] == "tilted"


class TwoHeads(nn.Module):
    """Its convention would find the projection."""

    def __init__(self):
        super().__init__()
        self.body, self.output, self.projection = network()[:2], network()[2], nn.Linear(8, 5)

    def forward(self, x):
        return self.output(self.body(x))


def test_a_classifier_is_found_by_its_name():
    trained = net(TwoHeads, criterion__classifier="output").fit(X, Y)
    model, _ = train_by_hand()
    assert torch.allclose(trained.module_.output.weight, model[2].weight, atol=TOLERANCE)
    with pytest.raises(ValueError, match="classifier must be or name a linear layer of the model"):
        net(TwoHeads, criterion__classifier="head").fit(X, Y)
