"""Recipes: the paper's table typed in a second time, its proportions at other lengths, and no network without one."""

import pytest

from isda.lab import networks
from isda.lab.engine import SCALES, Recipe, TrainingConfig
from isda.lab.tasks.classification.settings import CIFAR_RECIPES, recipe_for

# network: epochs, batch size, weight decay, momentum, initial learning rate, factor, epochs at which it falls.
PAPER = {
    "resnet-110": (160, 128, 1e-4, 0.9, 0.1, 0.1, (80, 120)),
    "se-resnet-110": (200, 128, 1e-4, 0.9, 0.1, 0.1, (80, 120, 160)),
    "wide-resnet-28-10": (240, 128, 5e-4, 0.9, 0.1, 0.2, (60, 120, 160, 200)),
    "densenet-bc-100-12": (300, 64, 1e-4, 0.9, 0.1, 0.1, (150, 200, 250)),
    "resnext-29-8x64d": (350, 128, 5e-4, 0.9, 0.05, 0.1, (150, 225, 300)),
}


def value(recipe, name):
    """What a configuration has of a field: the recipe's value, or the default."""
    field = TrainingConfig.__dataclass_fields__[name]
    return recipe.values.get(name, field.metadata.get("auto", field.default))


def values(recipe, *names):
    return tuple(value(recipe, name) for name in names)


@pytest.mark.parametrize("network", PAPER)
def test_cifar_networks_with_steps_are_trained_as_in_the_papers_table(network):
    recipe = recipe_for(network)
    fields = ("epochs", "batch_size", "weight_decay", "momentum", "lr", "lr_factor", "milestones")
    assert values(recipe, *fields) == PAPER[network]
    assert value(recipe, "schedule") == "steps"


@pytest.mark.parametrize(("network", "epochs", "batch"), [("shake-shake-26-2x32d", 1800, 64), ("cnn-13", 400, 128)])
def test_networks_with_a_cosine_are_trained_as_the_paper_says(network, epochs, batch):
    recipe = recipe_for(network)
    assert values(recipe, "epochs", "batch_size", "weight_decay", "momentum") == (epochs, batch, 1e-4, 0.9)
    assert values(recipe, "lr", "schedule", "milestones") == (0.1, "cosine", ())


@pytest.mark.parametrize("network", [*PAPER, "shake-shake-26-2x112d", "cnn-13"])
def test_the_papers_cifar_results_average_ten_epochs_with_full_covariance(network):
    recipe = recipe_for(network)
    assert recipe["average_last"] == 10
    assert recipe.method_defaults["isda"] == {"covariance": "full", "lambda_0": 0.5, "bound": "jensen"}


@pytest.mark.parametrize(
    ("network", "strength"),
    [
        ("resnet-50", 7.5),
        ("resnet-101", 5),
        ("resnet-152", 7.5),
        ("densenet-121", 1),
        ("densenet-265", 1),
        ("resnext-50-32x4d", 7.5),
        ("resnext-101-32x8d", 7.5),
        ("timm:densenet121", 1),
        ("timm:resnet101", 5),
        ("timm:resnet101.a1_in1k", 5),
        ("timm:resnet50", 7.5),
        ("timm:resnetv2_101", 7.5),
    ],
)
def test_imagenet_networks_follow_the_paragraph_below_the_table(network, strength):
    recipe = recipe_for(network)
    assert values(recipe, "epochs", "batch_size", "lr", "schedule") == (300, 512, 0.2, "cosine")
    assert values(recipe, "momentum", "weight_decay", "average_last") == (0.9, 1e-4, 10)
    assert recipe.method_defaults["isda"] == {"covariance": "diagonal", "lambda_0": strength, "bound": "jensen"}


def test_every_network_has_a_recipe():
    assert all(isinstance(recipe_for(name), Recipe) for name in networks.names())
    assert recipe_for("timm:resnet18")["epochs"] == 300


def test_a_network_without_a_recipe_is_told_which_families_have_one():
    with pytest.raises(ValueError, match="no recipe for the network 'vgg-16'; there are recipes for resnet, se-resnet"):
        recipe_for("vgg-16")


@pytest.mark.parametrize("family", CIFAR_RECIPES)
@pytest.mark.parametrize("scale", SCALES)
def test_scaling_keeps_the_proportions_within_half_an_epoch(family, scale):
    full = CIFAR_RECIPES[family]
    short = full.scaled(scale)
    assert abs(short["epochs"] - full["epochs"] * SCALES[scale]) <= 0.5
    share = short["epochs"] / full["epochs"]
    for milestone, original in zip(value(short, "milestones"), value(full, "milestones"), strict=True):
        assert abs(milestone - original * share) <= 0.5
        assert milestone >= 1
    assert 1 <= short["average_last"] <= max(1, round(full["average_last"] * share))
    kept = full.values.keys() - {"epochs", "milestones", "average_last"}
    assert all(short[name] == full[name] for name in kept)
    assert (short.method_defaults, short.method_grids) == (full.method_defaults, full.method_grids)


def test_the_scale_paper_changes_nothing():
    assert all(recipe.scaled("paper") == recipe for recipe in CIFAR_RECIPES.values())


@pytest.mark.parametrize(
    ("epochs", "milestones", "average_last"), [(16, (8, 12), 1), (80, (40, 60), 5), (320, (160, 240), 20)]
)
def test_any_number_of_epochs_has_proportional_milestones(epochs, milestones, average_last):
    recipe = CIFAR_RECIPES["resnet"].lasting(epochs)
    assert values(recipe, "epochs", "milestones", "average_last") == (epochs, milestones, average_last)


def test_the_window_is_never_longer_than_the_run():
    assert Recipe({"epochs": 5, "average_last": 10}).lasting(3)["average_last"] == 3


def test_the_first_epoch_of_a_very_short_run_has_the_full_learning_rate():
    assert min(CIFAR_RECIPES["resnet"].lasting(1)["milestones"]) >= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CIFAR_RECIPES["resnet"].lasting(0), "epochs must be at least 1, got 0"),
        (lambda: CIFAR_RECIPES["resnet"].lasting(10**20), "epochs must be at most 1000000000, got 1000000000000000000"),
        (lambda: Recipe({"epochs": 0, "batch_size": 1}), "epochs and batch_size must be at least 1, got 0"),
        (lambda: Recipe({"epochs": 1, "batch_size": 0}), "must be at least 1, got 1 and 0"),
    ],
)
def test_impossible_recipes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
