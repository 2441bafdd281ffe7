"""What `isda tune` chooses of classifiers, supervised and semi-supervised: the paper's grids, the paper's protocol."""

import pytest

from isda.lab.data import DataSet
from isda.lab.tasks.classification.task import Classification
from isda.lab.tasks.semi_supervised.settings import SemiSettings
from isda.lab.tasks.semi_supervised.task import SemiSupervisedClassification
from isda.lab.train import Settings
from small_runs import SMALL, digits

CIFAR, IMAGENET = (0.1, 0.25, 0.5, 0.75, 1.0), (1.0, 2.5, 5.0, 7.5, 10.0)


def grid(settings):
    return Classification().grid(settings, digits())


def semi_grid(method, **changes):
    settings = SemiSettings(**(SMALL | {"unlabelled": 100, "method": method} | changes))
    return SemiSupervisedClassification().grid(settings, digits())


def test_the_strengths_of_isda_are_the_papers_for_small_images_and_for_imagenet():
    assert grid(Settings(method="isda")) == {"lambda_0": CIFAR}
    assert grid(Settings(method="isda-tilted", network="resnet-110")) == {"lambda_0": CIFAR}
    assert grid(Settings(method="isda", network="resnet-50")) == {"lambda_0": IMAGENET}
    assert grid(Settings(method="cross-entropy")) == {}


def test_the_weights_of_semi_supervised_terms_are_the_papers_and_ours_around_the_publications():
    assert semi_grid("supervised") == {}
    assert semi_grid("supervised+isda") == {"lambda_0": CIFAR}
    assert semi_grid("vat") == {"eta_2": (0.5, 1.0, 2.0)}
    found = semi_grid("pi-model+isda")
    assert list(found) == ["lambda_0", "eta_1", "eta_2"]
    assert found["eta_1"] == (0.5, 1.0, 2.0)
    config = SemiSupervisedClassification().resolve(SemiSettings(**SMALL, unlabelled=100, method="pi-model"), digits())
    assert found["eta_2"][1] == config.method_options["eta_2"]
    assert found["eta_2"][0] / found["eta_2"][1] == pytest.approx(0.5)


@pytest.mark.parametrize("task", [Classification(), SemiSupervisedClassification()])
def test_every_searched_option_is_one_of_the_methods(task):
    for method in task.methods():
        settings = SemiSettings(**SMALL, unlabelled=100, method=method)
        assert task.grid(settings, digits()).keys() <= task.options(method).keys()


def larger(images):
    data = digits()
    times = -(-images // len(data.y_train))
    x, y = data.x_train.repeat(times, 1, 1, 1)[:images], data.y_train.repeat(times)[:images]
    return DataSet("large", x, y, data.x_test, data.y_test, data.classes)


@pytest.mark.parametrize(("images", "held"), [(50_000, 5_000), (73_257, 5_000), (20_000, 4_000)])
def test_five_thousand_images_are_held_out_or_a_fifth_of_a_small_set_and_put_back(images, held):
    found = Classification().held_out(Settings(method="isda"), larger(images))
    assert (found.choosing.held_out, found.final.held_out) == (held, None)
    assert found.description == f"{held:,} of {images:,} training images"


def test_the_user_may_say_how_many_and_labels_that_are_left_are_said():
    found = Classification().held_out(Settings(method="isda", held_out=300, labels=1200), digits())
    assert (found.choosing.held_out, found.choosing.labels) == (300, 997)
    assert (found.final.held_out, found.final.labels) == (None, 1200)
    assert found.description == "300 of 1,297 training images, which leaves 997 labels to learn from"


def test_a_quarter_of_the_labels_is_held_out_and_put_back():
    task, settings = SemiSupervisedClassification(), SemiSettings(method="vat", labels=100)
    found = task.held_out(settings, digits())
    assert (found.choosing.held_out_labels, found.final.held_out_labels) == (0.25, None)
    assert found.description == "25% of 100 labelled images"
    images = task.held_out(SemiSettings(method="vat", labels=100, held_out=50), digits())
    assert (images.choosing.held_out, images.choosing.held_out_labels, images.final.held_out) == (50, None, None)
