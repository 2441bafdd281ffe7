"""isda.refit: the classifier of a network becomes the optimum on its features, and nothing else changes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import isda
import pretend_accelerator

GIVEN = {"lambda_0": 0.0, "C": 0.5, "standardize": False, "tol": 1e-9, "verbose": False}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return torch.from_numpy(X).float()[::6] / 16, torch.from_numpy(y)[::6]


def network(outputs=10, bias=True, hidden=24):
    torch.manual_seed(0)
    layers = [nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs, bias=bias))


def loader(digits, batch_size=64):
    return DataLoader(TensorDataset(*digits), batch_size=batch_size)


def features_of(model, images):
    return copy.deepcopy(model).eval()[:-1](images).detach().double().numpy()


@pytest.mark.parametrize("classes", [2, 10])
def test_without_augmentation_it_is_logistic_regression_on_the_features(digits, classes):
    images, labels = (tensor[digits[1] < classes] for tensor in digits)
    model = network(classes)
    rows = features_of(model, images)
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(rows, labels)
    result = isda.refit(model, loader((images, labels)), **GIVEN)
    logits = model.eval()(images).detach()
    np.testing.assert_allclose(logits.softmax(1), theirs.predict_proba(rows), atol=1e-5)
    assert (result.lambda_0, result.C, result.scale, result.standardize) == (0.0, 0.5, 1.0, False)
    expected = -float(torch.nn.functional.cross_entropy(logits, labels))
    assert result.after.log_likelihood == pytest.approx(expected, abs=1e-5)
    assert result.after.error == pytest.approx(100 * float((logits.argmax(1) != labels).double().mean()))


def test_everything_else_stays_as_it_was(digits):
    model = network()
    model[1].eval()
    model.train()
    model[1].eval()  # a frozen batch norm in a network that trains
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    weight = model[-1].weight
    isda.refit(model, loader(digits), **GIVEN)
    assert [module.training for module in model.modules()] == modes
    assert model[-1].weight is weight
    assert weight.requires_grad
    assert weight.grad is None
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["4.weight", "4.bias"]
    assert not model[-1]._forward_hooks


def test_settings_are_chosen_and_figures_printed(digits, capsys):
    model = network(hidden=100)
    images, labels = digits
    logits = copy.deepcopy(model).eval()(images).detach()
    result = isda.refit(model, loader(digits), cv=3, covariance="within")
    printed = capsys.readouterr().out
    assert str(result) in printed
    assert "before, all samples" in printed
    assert result.before.log_likelihood == pytest.approx(-float(torch.nn.functional.cross_entropy(logits, labels)))
    assert result.before.error > 80
    assert result.after.error <= result.held_out.error < 15
    results = result.estimator.cv_results_
    assert result.held_out.log_likelihood == pytest.approx(results["mean_test_score"][results["best_index"]], abs=2e-3)
    assert (result.lambda_0, result.C) == (result.estimator.lambda_0_, result.estimator.C_)


def test_held_out_figures_are_those_of_models_that_did_not_see_the_samples(digits):
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    model, (images, labels) = network(), digits
    rows, folds = features_of(model, images), StratifiedKFold(3)
    result = isda.refit(model, loader(digits), cv=folds, **GIVEN)
    theirs = LogisticRegression(C=0.5, tol=1e-8, max_iter=10_000)
    predicted = cross_val_predict(theirs, rows, labels.numpy(), cv=folds, method="predict_proba")
    likelihood = np.log(predicted[np.arange(len(labels)), labels]).mean()
    assert result.held_out.log_likelihood == pytest.approx(likelihood, abs=2e-3)
    assert result.held_out.error == pytest.approx(100 * (predicted.argmax(1) != labels.numpy()).mean(), abs=0.7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_is_kept(digits, dtype):
    model = nn.Sequential(nn.Linear(64, 10)).to(dtype)
    isda.refit(model, loader((digits[0].to(dtype), digits[1])), **GIVEN)
    assert model[0].weight.dtype == model[0].bias.dtype == dtype
    assert (model(digits[0].to(dtype)).argmax(1) == digits[1]).double().mean() > 0.9


def test_a_convolution_on_pooled_features_is_a_classifier_too(digits):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc = nn.Linear(64, 24), nn.Conv2d(24, 10, 1)

        def forward(self, images):
            return self.fc(self.body(images).relu()[:, :, None, None]).flatten(1)

    model = Pooled()
    result = isda.refit(model, loader(digits), **GIVEN)
    assert 100 * float((model(digits[0]).argmax(1) != digits[1]).double().mean()) == pytest.approx(result.after.error)


def test_a_model_with_an_attached_criterion_trains_on(digits):
    model = network()
    criterion = isda.ISDALoss.attach(model, 0.5, 10)
    isda.refit(model, loader(digits), **GIVEN)
    criterion(model(digits[0]), digits[1]).backward()
    assert model[-1].weight.grad is not None


def test_one_sample_per_class_leaves_nothing_to_hold_out():
    result = isda.refit(nn.Sequential(nn.Linear(4, 4)), [(torch.eye(4), torch.arange(4))], verbose=False)
    assert result.held_out is None
    assert result.after.error == 0


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.head_dist = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, images):
        return (self.head(images) + self.head_dist(images)) / 2


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, images):
        return 10 * self.fc(images)


class Pixels(nn.Module):
    def __init__(self, size=1):
        super().__init__()
        self.classifier = nn.Conv2d(1, 10, size)

    def forward(self, images):
        return self.classifier(images.view(-1, 1, 8, 8))


def normalised():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)))


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU()), {}, "no classifier found|no linear layer"),
        (lambda: nn.Sequential(nn.Linear(64, 10, bias=False)), {}, "the classifier must have a bias, got bias=False"),
        (lambda: nn.Sequential(nn.Linear(64, 1)), {}, "at least two classes, got 1 output"),
        (lambda: nn.Sequential(nn.Linear(64, 12)), {}, r"samples of all 12 classes, got none of \[10, 11\]"),
        (lambda: nn.Sequential(nn.Linear(64, 5)), {}, r"targets must be in 0\.\.4, .* got 9"),
        (TwoHeads, {}, "the model has 2 classifiers; pass the one to use as classifier="),
        (TwoHeads, {"classifier": "head"}, "the output of the model must be that of its classifier"),
        (Scaled, {}, "the output of the model must be that of its classifier"),
        (Pixels, {}, r"not of pixels or tokens: their inputs must be \(N, A\), got \(64, 1, 8, 8\)"),
        (lambda: Pixels(3), {}, r"does not support pixel classifiers, got a convolution of \(3, 3\)"),
        (normalised, {}, "must hold its weight as a plain parameter"),
        (network, {"classifier": "0"}, "the output of the model must be that of its classifier"),
        (network, {"classifier": "nothing"}, "classifier must name a layer of the model, got 'nothing'"),
        (network, {"hidden": (4,)}, "does not support hidden="),
        (network, {"C": -1}, "C must be a finite number"),
    ],
)
def test_what_cannot_be_refitted_is_refused_before_anything_changes(digits, make, settings, message):
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        isda.refit(model, loader(digits), **settings)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training and not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: [], "at least one batch, got none"),
        (lambda x, y: [x], r"batches \(inputs, targets\), got Tensor"),
        (lambda x, y: [(x, y.double())], r"targets must be class indices \(300,\), .* got torch\.float64 \(300,\)"),
        (lambda x, y: [(x, y[:5])], r"targets must be class indices \(300,\), .* got torch\.int64 \(5,\)"),
        (lambda x, y: [(x, y.where(y > 0, -100))], r"targets must be in 0\.\.9, .* got -100"),
        (lambda x, y: [(x.where(x < 1, float("nan")), y)], "got NaN or infinite features of 2.. of 300 samples"),
    ],
)
def test_bad_samples_are_refused_before_anything_changes(digits, change, message):
    model = nn.Sequential(nn.Linear(64, 10))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        isda.refit(model, change(*digits))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
def test_the_device_is_kept(digits):
    here, there = (nn.Sequential(nn.Linear(64, 10)) for _ in range(2))
    isda.refit(here, loader(digits), **GIVEN)
    with pretend_accelerator.PretendAccelerator():
        there.to("pretend")
        isda.refit(there, loader(digits), **GIVEN)
        assert there[0].weight.device.type == there[0].bias.device.type == "pretend"
        there.to("cpu")
    torch.testing.assert_close(there[0].weight, here[0].weight)
