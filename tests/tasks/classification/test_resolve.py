"""From settings to a configuration: the recipe's defaults, the user's word over them, and what is refused."""

import pytest
import torch

from isda.lab.data import DataSet
from isda.lab.train import Settings, resolve
from small_runs import SMALL, digits, small_config


def pictures(name, size=32, channels=3, count=200):
    images = torch.zeros(count, channels, size, size, dtype=torch.uint8)
    labels = torch.arange(count) % 4
    return DataSet(name, images, labels, images[:20], labels[:20], classes=("a", "b", "c", "d"))


def test_what_is_left_open_comes_from_the_recipe():
    config = resolve(Settings(network="wide-resnet-16-8", data="cifar10"), pictures("cifar10"))
    assert (config.epochs, config.batch_size, config.lr, config.momentum) == (240, 128, 0.1, 0.9)
    assert (config.weight_decay, config.schedule, config.lr_factor) == (5e-4, "steps", 0.2)
    assert (config.milestones, config.average_last, config.scale) == ((60, 120, 160, 200), 10, "paper")
    assert config.method == "isda"
    assert config.method_options.items() >= {"lambda_0": 0.5, "covariance": "full", "bound": "jensen"}.items()
    assert config.network_options == {"in_channels": 3}


def test_what_the_data_set_is_stands_in_the_configuration():
    config, data = small_config(), digits()
    assert (config.classes, config.mean, config.std) == (data.classes, data.mean, data.std)
    assert (config.channels, config.image_size) == (1, (8, 8))
    assert (config.train_images, config.test_images, config.evaluated_on) == (100, 500, "test")


def test_the_users_word_goes_over_the_recipe():
    said = {"lr": 0.0, "weight_decay": 0.0, "batch_size": 7, "lambda_0": 0.0, "epochs": 3, "augment": "translate"}
    config = small_config(**said)
    assert (config.lr, config.weight_decay, config.batch_size, config.epochs) == (0.0, 0.0, 7, 3)
    assert (config.augment, config.method_options["lambda_0"], config.scale) == ("translate", 0.0, "custom")


def test_only_what_was_asked_is_kept_as_asked():
    assert small_config().settings == SMALL
    assert small_config(seed=4, scale="paper").settings == SMALL | {"seed": 4, "scale": "paper"}


def test_a_zero_that_was_asked_for_is_kept():
    zeros = {"seed": 0, "lr": 0.0, "weight_decay": 0.0, "lambda_0": 0.0}
    assert small_config(**zeros).settings == SMALL | zeros


@pytest.mark.parametrize(
    ("scale", "epochs", "milestones", "average"), [("small", 16, (8, 12), 1), ("paper", 160, (80, 120), 10)]
)
def test_a_scale_shortens_the_recipe(scale, epochs, milestones, average):
    config = small_config(network="resnet-8", epochs=None, scale=scale)
    assert (config.epochs, config.milestones, config.average_last) == (epochs, milestones, average)
    assert config.scale == scale


def test_held_out_images_are_neither_trained_on_nor_test_images():
    config = small_config(labels=None, held_out=97)
    assert (config.train_images, config.test_images, config.evaluated_on) == (1200, 97, "held-out")


@pytest.mark.parametrize(
    ("data", "network", "augment"),
    [
        (digits(), "fast-cnn", "none"),
        (pictures("digits-of-mine"), "fast-cnn", "none"),
        (pictures("svhn"), "fast-cnn", "crop"),
        (pictures("cifar10"), "resnet-20", "crop-flip"),
        (pictures("holiday"), "fast-cnn", "crop-flip"),
        (pictures("cifar10"), "resnet-50", "imagenet"),
    ],
)
def test_each_data_set_has_the_augmentation_that_suits_it(data, network, augment):
    assert resolve(Settings(network=network, batch_size=20), data).augment == augment


def test_imagenet_has_a_network_of_its_own():
    config = resolve(Settings(data="imagenet", batch_size=20), pictures("imagenet", size=64))
    assert (config.network, config.method_options["covariance"], config.epochs) == ("resnet-50", "diagonal", 300)
    assert resolve(Settings(batch_size=20), pictures("cifar10")).network == "fast-cnn"


def test_the_batch_of_a_recipe_fits_small_data():
    with pytest.warns(UserWarning, match="batch_size is 100, all training images; the recipe's 128 are more"):
        config = small_config(batch_size=None)
    assert (config.batch_size, config.steps_per_epoch) == (100, 1)


def test_options_of_the_network_are_numbers_where_they_look_like_numbers():
    config = small_config(network="resnet-8", width=None, network_options={"width": "0.5", "dropout": "0"})
    assert config.network_options == {"in_channels": 1, "width": 0.5, "dropout": 0}
    assert small_config(network_options={"width": "2"}).network_options == {"in_channels": 1, "width": 0.25}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "resnet20"}, r"network must be one of .*, got 'resnet20'; did you mean 'resnet-20'\?"),
        ({"method": "isdatilted"}, r"method must be one of .*, got 'isdatilted'; did you mean 'isda-tilted'\?"),
        ({"method": "mixup+isda:alpha=-1"}, "alpha must be a finite number >= 0, got -1"),
        ({"method": "mixup+isda:schedule=never"}, "schedule must be one of linear, constant, got 'never'"),
        ({"augment": "cut-out"}, r"augment must be one of .*, got 'cut-out'; did you mean 'cutout'\?"),
        ({"epochs": None, "scale": "smal"}, r"scale must be one of paper, small, smoke, got 'smal'; did you mean"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 101}, "batch_size must be from 1 to 100, the training images, got 101"),
        ({"batch_size": -1}, "batch_size must be from 1 to 100, .* got -1"),
        ({"labels": 0}, "labels must be from 1 to 1297, the images not held out, got 0"),
        ({"labels": 1298}, "labels must be from 1 to 1297, .* got 1298"),
        ({"labels": 1290, "held_out": 10}, "labels must be from 1 to 1287, .* got 1290"),
        ({"held_out": -1}, "held_out must be from 0 to 1296 for 1297 training images, got -1"),
        ({"held_out": 1297}, "held_out must be from 0 to 1296 .* got 1297"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size .* got 0"),
        ({"lr": -1.0}, "lr .* got -1"),
        ({"lr": float("nan")}, "lr .* got nan"),
        ({"weight_decay": -1.0}, "weight_decay .* got -1"),
        ({"weight_decay": float("nan")}, "weight_decay .* got nan"),
        ({"precision": "fp16"}, "precision must be one of .* got 'fp16'"),
        ({"seed": 2**64}, "seed .* got 18446744073709551616"),
        ({"labels": 1290}, "labels"),
        ({"ema": 0.0}, "ema must lie strictly between 0 and 1, got 0.0"),
        ({"ema": 1.0}, "ema must lie strictly between 0 and 1, got 1.0"),
        ({"ema": float("nan")}, "ema must lie strictly between 0 and 1, got nan"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small_config(**changes)
