"""Methods: how they are written, what is refused, and that the criterion is exactly the one that was asked for."""

import copy
import inspect
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isda import ISDALoss
from isda.covariance import KINDS, DiagonalCovariance
from isda.lab import networks
from isda.lab.engine import Outcome
from isda.lab.engine.options import option_types
from isda.lab.methods.options import ISDAOptions
from isda.lab.methods.registry import METHODS, ClassificationMethod, find_method
from isda.lab.tasks.classification.settings import recipe_for
from isda.lab.tasks.common.data import ImageBatch
from isda.lab.train import train
from oracles import batch_covariance, jensen_bound
from small_runs import digits, small_config

CIFAR, IMAGENET = recipe_for("resnet-20"), recipe_for("resnet-101")
PAPER = {"lambda_0": 0.5, "covariance": "full", "bound": "jensen"}
CLASSES = 3


@pytest.fixture
def network():
    return networks.create("fast-cnn", num_classes=CLASSES, in_channels=1, width=0.1).double().train()


def batches(count, size=12):
    for _ in range(count):
        images = torch.randn(size, 1, 8, 8, dtype=torch.float64)
        yield ImageBatch(images, torch.randint(CLASSES, (size,)), torch.arange(size))


def options_of(text, recipe=CIFAR, **shortcuts):
    name, _, words = text.partition(":")
    return find_method(name).resolve(words, recipe, shortcuts)


def create(name, options, network, total_steps):
    """The method in a run of so many steps."""
    config = replace(small_config(epochs=1), method=name, method_options=options, epochs=1, steps_per_epoch=total_steps)
    return find_method(name).create(network, config)


# -- how they are written ----------------------------------------------------------------------------------------------


def test_the_text_goes_over_the_setting_and_the_setting_over_the_recipe():
    assert options_of("isda", lambda_0=3.0)["lambda_0"] == 3.0
    assert options_of("isda", lambda_0=0.0)["lambda_0"] == 0.0
    assert options_of("isda:lambda_0=1", lambda_0=3.0)["lambda_0"] == 1.0
    assert "lambda_0" not in options_of("cross-entropy", lambda_0=3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crossentropy", r"method must be one of .*, got 'crossentropy'; did you mean 'cross-entropy'\?"),
        ("", "method must be one of cross-entropy, isda, isda-tilted, .*, got ''"),
        ("isda:lambda0=1", r"option of method isda must be one of .*, got 'lambda0'; did you mean 'lambda_0'\?"),
        ("cross-entropy:lambda_0=1", "option of method cross-entropy must be one of label_smoothing, got 'lambda_0'"),
        ("isda:lambda_0", "method options are written key=value, got 'lambda_0' in isda:lambda_0"),
        ("isda:lambda_0=strong", "option lambda_0 of method isda must be a number, got 'strong'"),
        ("isda:rank=1.5", "option rank of method isda must be an integer, got '1.5'"),
        ("isda:lambda_0=1,lambda_0=2", "option lambda_0 of method isda must be given once, got it twice in isda:"),
        ("isda-tilted:bound=jensen", "method 'isda-tilted' settles bound=tilted, got bound=jensen"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        options_of(text)


def test_every_setting_of_a_covariance_model_is_an_option_of_isda():
    """Under its own name; but for those that a run decides."""
    of_the_run = {"num_classes", "feature_dim", "device", "dtype", "sync", "process_group"}
    options = option_types(ISDAOptions)
    for model in KINDS.values():
        made_by = [inspect.signature(one.__init__).parameters for one in model.__mro__ if issubclass(one, nn.Module)]
        settings = {p.name for each in made_by for p in each.values() if p.kind is p.KEYWORD_ONLY} - of_the_run
        assert settings <= options.keys()
    assert {"lambda_0", "covariance", "bound", "label_smoothing", "tilt_steps"} <= options.keys()


# -- what is refused when it is made -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("isda", {"covariance": "ful"}, r"covariance must be one of .* got 'ful'; did you mean 'full'\?"),
        ("isda", {"covariance": "ful", "rank": 3}, "covariance must be one of .* got 'ful'"),
        ("isda", {"bound": "tilt"}, r"bound must be one of jensen, tilted, got 'tilt'; did you mean 'tilted'\?"),
        ("isda", {"schedule": "linar"}, r"schedule must be one of linear, constant, got 'linar'; did you mean"),
        ("isda", {"lambda_0": -1.0}, "lambda_0 must be a finite number >= 0, got -1.0"),
        ("isda", {"decay": 1.5}, "decay must lie strictly between 0 and 1"),
        ("isda", {"label_smoothing": 2.0}, "label_smoothing must lie in 0..1, got 2.0"),
        ("isda", {"rank": 3}, "rank is for covariance=low_rank or learned, got covariance=full"),
        ("isda", {"covariance": "diagonal", "rank": 3}, "rank is for .*, got covariance=diagonal"),
        ("isda", {"covariance": "low_rank", "rank": 0}, "rank must be .* got 0"),
        ("isda", {"covariance": "identity", "decay": 0.9}, "decay is for covariance=full or .*, got covariance=ident"),
        ("isda", {"covariance": "learned", "decay": 0.9}, "decay is for covariance=full or .*, got covariance=learned"),
        ("isda", {"scale": 2.0}, "scale is for covariance=learned, got covariance=full"),
        ("isda", {"covariance": "shared", "uncertainty_weight": 1.0}, "uncertainty_weight is for covariance=learned"),
        ("isda", {"speed": 3}, "method isda has no option 'speed'"),
        ("cross-entropy", {"label_smoothing": 2.0}, "label_smoothing must lie in 0..1, got 2.0"),
        ("cross-entropy", {"label_smoothing": -0.1}, "label_smoothing must lie in 0..1, got -0.1"),
        ("cross-entropy", {"lambda_0": 0.5}, "method cross-entropy has no option 'lambda_0'"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_their_name(name, options, message, network):
    with pytest.raises(ValueError, match=message):
        create(name, (PAPER if name == "isda" else {}) | options, network, 10)


# -- what they compute -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_torchs(smoothing, network):
    method = create("cross-entropy", {"label_smoothing": smoothing} if smoothing else {}, network, 10)
    assert isinstance(method.criterion, nn.CrossEntropyLoss)
    (batch,) = batches(1)
    terms, logits = method(network, batch)
    assert list(terms) == ["cross-entropy"]
    expected = F.cross_entropy(logits, batch.targets, label_smoothing=smoothing)
    assert torch.equal(terms["cross-entropy"], expected)
    assert method.measures() == {}


def test_isda_is_the_papers_bound_with_a_strength_that_grows_over_the_run(network):
    method = create("isda", PAPER | {"lambda_0": 2.0}, network, 4)
    features = torch.empty(0, network.feature_dim, dtype=torch.float64)
    targets = torch.empty(0, dtype=torch.int64)
    for step, batch in enumerate(batches(6)):
        strength = 2.0 * min(step, 4) / 4
        assert method.measures() == pytest.approx({"strength": strength})
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
        ("isda", {"bound": "tilted", "covariance": "full", "tilt_steps": 1}),
        ("isda-tilted", {"bound": "tilted", "covariance": "shared"}),
        ("isda", {"bound": "jensen", "covariance": "diagonal", "decay": 0.5, "label_smoothing": 0.1}),
        ("isda", {"bound": "jensen", "covariance": "low_rank", "rank": 2}),
        ("isda", {"bound": "jensen", "covariance": "learned", "rank": 2, "scale": 0.3}),
        ("isda", {"bound": "jensen", "covariance": "learned", "uncertainty_weight": 0.3, "uncertainty_margin": 99.0}),
    ],
)
def test_the_options_reach_the_criterion(name, options, network):
    method = create(name, {"lambda_0": 1.0, **options}, network, 3)
    own = ISDALoss(CLASSES, network.feature_dim, lambda_0=1.0, total_steps=3, dtype=torch.float64, **options)
    for batch in batches(3):
        terms, logits = method(network, batch)
        features = network.features(batch.images)
        expected = own(logits, batch.targets, features=features, weight=network.classifier.weight)
        torch.testing.assert_close(terms["isda"], expected, rtol=1e-9, atol=1e-9)
    assert method.measures() == pytest.approx({"strength": 1.0})


def test_a_constant_schedule_keeps_the_strength(network):
    method = create("isda", PAPER | {"lambda_0": 0.7, "schedule": "constant"}, network, 5)
    for batch in batches(2):
        assert method.measures() == {"strength": 0.7}
        method(network, batch)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_moves_every_parameter(name, network):
    method = create(name, options_of(name), network, 2)
    for batch in batches(2):
        network.zero_grad()
        terms, _ = method(network, batch)
        sum(terms.values()).backward()
    assert isinstance(method, ClassificationMethod)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_the_state_of_a_method_can_be_carried_over(network):
    first = create("isda", options_of("isda:lambda_0=1"), network, 6)
    for batch in batches(2):
        first(network, batch)
    state, measures = copy.deepcopy(first.state_dict()), first.measures()
    (batch,) = batches(1)
    expected = first(network, batch).terms["isda"]
    # A second criterion takes the place of the first: a classifier has one.
    second = create("isda", options_of("isda:lambda_0=1"), network, 6)
    second.load_state_dict(state)
    assert second.measures() == measures == pytest.approx({"strength": 2 / 6})
    torch.testing.assert_close(second(network, batch).terms["isda"], expected, rtol=1e-12, atol=0)


# -- a user's own ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FocalOptions:
    gamma: float = 2.0


class Focal(ClassificationMethod):
    """-(1 - p)^gamma log p (Lin et al., 2017), as a user would write it."""

    Options = FocalOptions

    def __init__(self, options, network, config):
        super().__init__()
        self.gamma = options.gamma

    def forward(self, network, batch):
        logits = network(batch.images)
        log_p = logits.log_softmax(1).gather(1, batch.targets.unsqueeze(1))
        return Outcome({"focal": -((1 - log_p.exp()) ** self.gamma * log_p).mean()}, logits)


class Variances(DiagonalCovariance):
    """A covariance model of a user's own, which ISDALoss cannot make by name."""


FOCAL, VARIANCES = (f"{__name__}.{kind.__name__}" for kind in (Focal, Variances))


def test_a_users_own_method_is_found_by_its_class_and_trained(network, tmp_path):
    assert find_method(FOCAL) is Focal
    assert options_of(f"{FOCAL}:gamma=0") == {"gamma": 0.0}
    (batch,) = batches(1)
    terms, logits = create(FOCAL, {"gamma": 0.0}, network, 2)(network, batch)
    torch.testing.assert_close(terms["focal"], F.cross_entropy(logits, batch.targets))
    config = small_config(method=f"{FOCAL}:gamma=1")
    assert (config.task, config.method, config.method_options) == ("classification", FOCAL, {"gamma": 1.0})
    assert train(config, digits(), tmp_path)["epochs"] == 2


def test_a_users_own_covariance_is_found_by_its_class(network):
    options = {"lambda_0": 1.0, "covariance": VARIANCES, "bound": "jensen", "decay": 0.5}
    method = create("isda", options, network, 1)
    assert isinstance(method.criterion.covariance, Variances)
    assert method.criterion.covariance.decay == 0.5
    covariance = Variances(CLASSES, network.feature_dim, decay=0.5, dtype=torch.float64)
    own = ISDALoss(CLASSES, network.feature_dim, 1.0, 1, covariance=covariance)
    for batch in batches(2):
        terms, logits = method(network, batch)
        features = network.features(batch.images)
        expected = own(logits, batch.targets, features=features, weight=network.classifier.weight)
        torch.testing.assert_close(terms["isda"], expected, rtol=1e-9, atol=1e-9)
