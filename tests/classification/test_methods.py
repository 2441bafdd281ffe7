"""Methods: how they are written, what is refused, and that the criterion is exactly the one that was asked for."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isda import ISDALoss, networks
from isda.classification.batches import Batch
from isda.classification.methods import METHODS, Supervised, create_method, resolve_method
from isda.classification.recipes import recipe_for
from oracles import batch_covariance, jensen_bound

CIFAR, IMAGENET = recipe_for("resnet-20"), recipe_for("resnet-101")
CLASSES = 3


@pytest.fixture
def network():
    return networks.create("fast-cnn", num_classes=CLASSES, in_channels=1, width=0.1).double().train()


def batches(count, size=12):
    for _ in range(count):
        images = torch.randn(size, 1, 8, 8, dtype=torch.float64)
        yield Batch(images, torch.randint(CLASSES, (size,)), torch.arange(size))


@pytest.mark.parametrize(
    ("text", "recipe", "expected"),
    [
        ("cross-entropy", CIFAR, {}),
        ("cross-entropy:label_smoothing=0.1", CIFAR, {"label_smoothing": 0.1}),
        ("isda", CIFAR, {"lambda_0": 0.5, "covariance": "full", "bound": "jensen"}),
        ("isda", IMAGENET, {"lambda_0": 5.0, "covariance": "diagonal", "bound": "jensen"}),
        ("isda-tilted", CIFAR, {"lambda_0": 0.5, "covariance": "full", "bound": "tilted"}),
        ("isda:lambda_0=2", CIFAR, {"lambda_0": 2.0, "covariance": "full", "bound": "jensen"}),
        (
            "isda:covariance=low_rank,rank=4,decay=0.99,schedule=constant",
            CIFAR,
            {
                "lambda_0": 0.5,
                "covariance": "low_rank",
                "bound": "jensen",
                "rank": 4,
                "decay": 0.99,
                "schedule": "constant",
            },
        ),
        ("isda:bound=jensen", CIFAR, {"lambda_0": 0.5, "covariance": "full", "bound": "jensen"}),
    ],
)
def test_a_method_is_its_name_the_recipe_and_what_is_written(text, recipe, expected):
    assert resolve_method(text, recipe) == (text.partition(":")[0], expected)


def test_the_text_goes_over_the_setting_and_the_setting_over_the_recipe():
    assert resolve_method("isda", CIFAR, lambda_0=3.0)[1]["lambda_0"] == 3.0
    assert resolve_method("isda", CIFAR, lambda_0=0.0)[1]["lambda_0"] == 0.0
    assert resolve_method("isda:lambda_0=1", CIFAR, lambda_0=3.0)[1]["lambda_0"] == 1.0
    assert resolve_method("cross-entropy", CIFAR, lambda_0=3.0) == ("cross-entropy", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crossentropy", r"method must be one of .*, got 'crossentropy'; did you mean 'cross-entropy'\?"),
        ("", "method must be one of cross-entropy, isda, isda-tilted, got ''"),
        ("isda:lambda0=1", r"option of method isda must be one of .*, got 'lambda0'; did you mean 'lambda_0'\?"),
        ("cross-entropy:lambda_0=1", "option of method cross-entropy must be one of label_smoothing, got 'lambda_0'"),
        ("isda:lambda_0", "method options are written key=value, got 'lambda_0' in isda:lambda_0"),
        ("isda:lambda_0=strong", "option lambda_0 of method isda must be a number, got 'strong'"),
        ("isda:rank=1.5", "option rank of method isda must be an integer, got '1.5'"),
        ("isda-tilted:bound=jensen", "method 'isda-tilted' settles bound=tilted, got bound=jensen"),
        ("isda:bound=tilted", "method 'isda' settles bound=jensen, got bound=tilted"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        resolve_method(text, CIFAR)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance": "ful"}, r"covariance must be one of .* got 'ful'; did you mean 'full'\?"),
        ({"schedule": "linar"}, r"schedule must be one of linear, constant, got 'linar'; did you mean 'linear'\?"),
        ({"lambda_0": -1.0}, "lambda_0 must be a finite number >= 0, got -1.0"),
        ({"decay": 1.5}, "decay must lie strictly between 0 and 1"),
        ({"label_smoothing": 2.0}, "label_smoothing must lie in 0..1, got 2.0"),
    ],
)
def test_values_that_isda_cannot_take_are_refused(options, message, network):
    with pytest.raises(ValueError, match=message):
        create_method("isda", {"lambda_0": 0.5, "covariance": "full", "bound": "jensen"} | options, network, 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cross-entropy", {"label_smoothing": 2.0}, "label_smoothing .* got 2.0"),
        ("isda", {"lambda_0": 0.5, "covariance": "full", "bound": "jensen", "rank": 3}, "rank"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_their_name(name, options, message, network):
    with pytest.raises(ValueError, match=message):
        create_method(name, options, network, 10)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_torchs(smoothing, network):
    method = create_method("cross-entropy", {"label_smoothing": smoothing} if smoothing else {}, network, 10)
    assert isinstance(method.criterion, nn.CrossEntropyLoss)
    (batch,) = batches(1)
    terms, logits = method(network, batch)
    assert list(terms) == ["cross-entropy"]
    expected = F.cross_entropy(logits, batch.targets, label_smoothing=smoothing)
    assert torch.equal(terms["cross-entropy"], expected)
    assert method.measures() == {}


def test_isda_is_the_papers_bound_with_a_strength_that_grows_over_the_run(network):
    method = create_method("isda", {"lambda_0": 2.0, "covariance": "full", "bound": "jensen"}, network, 4)
    features = torch.empty(0, network.feature_dim, dtype=torch.float64)
    targets = torch.empty(0, dtype=torch.int64)
    for step, batch in enumerate(batches(6)):
        strength = 2.0 * min(step, 4) / 4
        assert method.measures() == {"strength": strength}
        terms, logits = method(network, batch)
        features = torch.cat([features, network.features(batch.images).detach()])
        targets = torch.cat([targets, batch.targets])
        covariances = batch_covariance(features, targets, CLASSES)
        weight = network.classifier.weight.detach()
        expected = jensen_bound(logits.detach(), batch.targets, weight, covariances, strength).mean()
        torch.testing.assert_close(terms["isda"].detach(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("isda", {"bound": "jensen", "covariance": "full"}),
        ("isda-tilted", {"bound": "tilted", "covariance": "full"}),
        ("isda", {"bound": "jensen", "covariance": "diagonal", "decay": 0.5, "label_smoothing": 0.1}),
        ("isda", {"bound": "jensen", "covariance": "low_rank", "rank": 2}),
        ("isda-tilted", {"bound": "tilted", "covariance": "shared"}),
    ],
)
def test_the_options_reach_the_criterion(name, options, network):
    method = create_method(name, {"lambda_0": 1.0, **options}, network, 3)
    own = ISDALoss(CLASSES, network.feature_dim, lambda_0=1.0, total_steps=3, dtype=torch.float64, **options)
    for batch in batches(3):
        terms, logits = method(network, batch)
        features = network.features(batch.images)
        expected = own(logits, batch.targets, features=features, weight=network.classifier.weight)
        torch.testing.assert_close(terms["isda"], expected, rtol=1e-9, atol=1e-9)
    assert method.measures() == {"strength": 1.0}


def test_a_constant_schedule_keeps_the_strength(network):
    options = {"lambda_0": 0.7, "covariance": "full", "bound": "jensen", "schedule": "constant"}
    method = create_method("isda", options, network, 5)
    for batch in batches(2):
        assert method.measures() == {"strength": 0.7}
        method(network, batch)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_moves_every_parameter(name, network):
    _, options = resolve_method(name, CIFAR)
    method = create_method(name, options, network, 2)
    for batch in batches(2):
        network.zero_grad()
        terms, _ = method(network, batch)
        sum(terms.values()).backward()
    assert isinstance(method, Supervised)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_the_state_of_a_method_can_be_carried_over(network):
    _, options = resolve_method("isda:lambda_0=1", CIFAR)
    first, second = (create_method("isda", options, network, 6) for _ in range(2))
    for batch in batches(2):
        first(network, batch)
    second.load_state_dict(first.state_dict())
    (batch,) = batches(1)
    assert second.measures() == first.measures() == {"strength": 2 / 6}
    # One criterion at a time: both record the same classifier.
    expected = first(network, batch).terms["isda"]
    torch.testing.assert_close(second(network, batch).terms["isda"], expected, rtol=1e-12, atol=0)
