"""From settings to a semi-supervised configuration: the publications' numbers, and the user's word over them."""

from dataclasses import replace

import pytest
import torch

from isda import ISDALoss
from isda.covariance import LowRankCovariance
from isda.lab import networks
from isda.lab.data import DataSet
from isda.lab.methods.semi import NAMES, MeanTeacher, create, defaults_for
from isda.lab.tasks.semi_supervised.method import create_method
from isda.lab.tasks.semi_supervised.settings import SemiConfig
from isda.lab.train import SemiSettings, Settings, resolve
from semi_runs import semi_config, semi_job
from small_runs import digits

SMALL_IMAGE = 12


def pictures(name, count, classes=10, size=SMALL_IMAGE):
    """Blank images in the number of a paper's data set; nobody looks at them."""
    images = torch.zeros(1, 3, size, size, dtype=torch.uint8)
    labels = torch.arange(count) % classes
    return DataSet(
        name,
        images.expand(count, -1, -1, -1),
        labels,
        images.expand(classes, -1, -1, -1),
        labels[:classes],
        classes=tuple(map(str, range(classes))),
    )


CIFAR10, CIFAR100 = pictures("cifar10", 50_000), pictures("cifar100", 50_000, classes=100)
SVHN = pictures("svhn", 73_257)


def paper_cell(data, method, labels, **changes):
    return resolve(SemiSettings(data=data.name, network="cnn-13", method=method, labels=labels, **changes), data)


@pytest.mark.parametrize(
    ("data", "method", "labels", "published", "expected"),
    [
        (CIFAR10, "vat+isda", 4000, 32, {"eta_1": 1.0, "eta_2": 1.0, "ramp_up": 0.0, "epsilon": 8.0}),
        (CIFAR10, "mean-teacher+isda", 4000, 10, {"eta_2": 100.0, "ramp_up": 40 / 150, "teacher_decay": 0.999}),
        (CIFAR10, "mean-teacher:mean_over=batch", 4000, 10, {"eta_2": 8.0}),
        (CIFAR10, "mean-teacher", 1000, 3, {"eta_2": 100.0, "input_noise": 0.15, "passes": "joint"}),
        (CIFAR10, "pi-model:mean_over=batch", 2000, 5, {"eta_2": 4.0, "ramp_up": 80 / 300}),
        (CIFAR10, "temporal-ensembling", 4000, 10, {"eta_2": 30.0, "alpha": 0.6}),
        (CIFAR10, "supervised+isda", 4000, 128, {"eta_1": 0.0, "lambda_0": 0.5, "covariance": "full"}),
        (CIFAR100, "temporal-ensembling+isda", 10_000, 26, {"eta_2": 100.0, "bound": "jensen"}),
        (SVHN, "mean-teacher+isda", 500, 1, {"eta_2": 100.0, "ramp_up": 40 / 180, "ramp_up_teacher_decay": 0.99}),
        # 3.5 for pixels in -0.5..0.5 is this much for images of unit variance.
        (SVHN, "vat", 500, 32, {"epsilon": 3.5 / 0.12, "passes": "separate"}),
    ],
)
def test_the_papers_cells_have_the_publications_numbers(data, method, labels, published, expected):
    config = paper_cell(data, method, labels)
    # As many labelled as unlabelled images, as in Verma et al.; the publication's proportion if it is asked for.
    assert (config.labels, config.labelled_per_batch, config.method) == (labels, 128, method.split(":")[0])
    other = paper_cell(data, method, labels, labelled_per_batch="published")
    assert (other.labelled_per_batch, other.method_options) == (published, config.method_options)
    assert {name: config.method_options[name] for name in expected} == pytest.approx(expected)
    # The paper's recipe: 400 epochs of one pass over all images in batches of 128, cosine from 0.1, decay 1e-4.
    assert (config.epochs, config.batch_size, config.lr, config.schedule) == (400, 128, 0.1, "cosine")
    assert (config.weight_decay, config.momentum, config.average_last) == (1e-4, 0.9, 10)
    assert config.steps_per_epoch == len(data.y_train) // 128


def test_there_are_no_more_labelled_images_in_a_step_than_labels():
    assert semi_config(method="vat", labels=30, labelled_per_batch=None).labelled_per_batch == 30
    assert semi_config(method="vat", labels=30, held_out_labels=0.5, labelled_per_batch=None).labelled_per_batch == 15


def test_all_methods_take_equally_many_steps():
    for name in NAMES:
        config = semi_config(method=name)
        assert (config.train_images, config.unlabelled, config.total_steps) == (250, 200, 18)


@pytest.mark.parametrize(
    ("data", "normalisation", "augment"),
    [
        (CIFAR10, "zca", "translate-flip"),
        (CIFAR100, "zca", "translate-flip"),
        (SVHN, "per-image", "translate"),
        (pictures("holiday", 5000), "channel", "translate"),
        # So few that ZCA would fit their noise: 432 numbers per image.
        (pictures("cifar10", 4000), "channel", "translate-flip"),
        (digits(), "channel", "none"),
    ],
)
def test_each_data_set_is_prepared_as_in_the_publications(data, normalisation, augment):
    settings = SemiSettings(network="cnn-13" if data is not digits() else "fast-cnn", method="pi-model", labels=100)
    config = resolve(settings, data)
    assert (config.normalisation, config.augment) == (normalisation, augment)


def test_supervised_methods_know_nothing_of_unlabelled_images():
    config = resolve(Settings(network="cnn-13", method="isda", labels=1000), CIFAR10)
    assert not isinstance(config, SemiConfig)
    assert (config.train_images, config.samples_per_step, config.augment) == (1000, 128, "crop-flip")


def test_what_is_written_goes_over_the_publication():
    text = "mean-teacher+isda:lambda_0=0.25,covariance=diagonal,bound=tilted,eta_1=2,eta_2=8,ramp_up=0.5,"
    text += "teacher_decay=0.9,ramp_up_teacher_decay=0.8,distance=kl,passes=separate,mean_over=batch,input_noise=0.1"
    config = semi_config(method=text, lambda_0=3.0)
    network = networks.create("fast-cnn", num_classes=10, in_channels=1, width=0.1)
    objective = create_method(config, network).objective
    criterion, teacher = objective.criterion, objective.regulariser
    assert (criterion.lambda_0, criterion.total_steps, criterion.bound) == (0.25, 18, "tilted")
    assert type(criterion.covariance).__name__ == "DiagonalCovariance"
    assert (objective.consistency_weight.at(0), objective.consistency_weight.final) == (2.0, 2.0)
    assert (objective.regulariser_weight.final, objective.regulariser_weight.steps) == (8.0, 9)
    assert isinstance(teacher, MeanTeacher)
    assert (teacher.teacher_decay, teacher.ramp_up_teacher_decay) == (0.9, 0.8)
    assert (teacher.ramp_up_steps, teacher.distance) == (9, "kl")
    assert (objective.passes, objective.mean_over, objective.input_noise) == ("separate", "batch", 0.1)
    assert config.method_options["lambda_0"] == 0.25
    assert semi_config(method="vat+isda", lambda_0=3.0).method_options["lambda_0"] == 3.0
    assert "lambda_0" not in semi_config(method="vat", lambda_0=3.0).method_options


def test_isdas_options_reach_isda_and_the_teachers_the_teacher():
    text = "mean-teacher+isda:memory=30,rank=4,covariance=low_rank,bound=tilted,label_smoothing=0.1"
    for teacher_decay, words in ((0.999, ""), (0.8, ",teacher_decay=0.8")):
        objective = semi_job(method=text + words).method.objective
        criterion, teacher = objective.criterion, objective.regulariser
        assert isinstance(criterion, ISDALoss)
        assert isinstance(criterion.covariance, LowRankCovariance)
        assert (criterion.covariance.memory, criterion.covariance.rank) == (30, 4)
        assert (criterion.bound, criterion.label_smoothing) == ("tilted", 0.1)
        assert (teacher.teacher_decay, teacher.ramp_up_teacher_decay) == (teacher_decay, teacher_decay)


def test_one_decay_of_the_teacher_is_meant_for_the_whole_run():
    """On SVHN the publication has another one for the ramp-up."""
    both = ("teacher_decay", "ramp_up_teacher_decay")
    for text, expected in (("", [0.999, 0.99]), (":teacher_decay=0.9", [0.9, 0.9])):
        options = paper_cell(SVHN, f"mean-teacher{text}", 500).method_options
        assert [options[name] for name in both] == expected


@pytest.mark.parametrize("name", ["supervised+isda", "pi-model+isda"])
def test_a_constant_schedule_keeps_the_strength_from_the_first_step_on(name):
    job = semi_job(method=f"{name}:schedule=constant,lambda_0=0.7")
    assert job.method.measures()["strength"] == pytest.approx(0.7)
    job.step(next(job.batches(0)), 0)
    assert job.method.measures()["strength"] == pytest.approx(0.7)


def test_what_is_not_written_is_what_isda_semi_makes_by_itself():
    for name in NAMES:
        config = semi_config(method=name)
        network = networks.create("fast-cnn", num_classes=10, in_channels=1, width=0.1)
        mine = create_method(config, network).objective
        own = create(name, network, labels=50, samples=250, total_steps=18, dataset="digits")
        for part in ("consistency_weight", "regulariser_weight", "passes", "mean_over", "input_noise"):
            if part != "regulariser_weight" or mine.regulariser is not None:
                assert getattr(mine, part) == getattr(own, part), (name, part)
        assert type(mine.regulariser) is type(own.regulariser)
        if own.regulariser is not None:
            plain = {key: value for key, value in vars(own.regulariser).items() if isinstance(value, float | int | str)}
            assert plain.items() <= vars(mine.regulariser).items()


@pytest.mark.parametrize("text", ["entropy_minimisation=true", "entropy_minimisation=True"])
def test_truth_is_written_as_a_word(text):
    assert semi_config(method=f"vat:{text}").method_options["entropy_minimisation"] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "vat:eta_1=1"}, "option of method vat must be one of .*, got 'eta_1'; did you mean 'eta_2'"),
        ({"method": "supervised:eta_2=1"}, "option of method supervised must be one of .*, got 'eta_2'"),
        ({"method": "pi-model:alpha=0.6"}, "option of method pi-model must be one of .*, got 'alpha'"),
        ({"method": "vat+isda:eta_1=-1"}, "eta_1 must be a finite number >= 0, got -1.0"),
        ({"method": "vat:eta_2=nan"}, "eta_2 must be a finite number >= 0, got nan"),
        ({"method": "vat:ramp_up=2"}, "ramp_up must lie in 0..1, a share of training, got 2.0"),
        ({"method": "vat:xi=small"}, "option xi of method vat must be a number, got 'small'"),
        ({"method": "vat:power_iterations=1.5"}, "option power_iterations of method vat must be an integer"),
        ({"method": "vat:entropy_minimisation=1"}, "option entropy_minimisation of method vat must be true or false"),
        ({"method": "mean-teacher:memory=30"}, "option of method mean-teacher must be one of .*, got 'memory'"),
        ({"method": "vat+isda:lambda_0=1,lambda_0=2"}, r"option lambda_0 of method vat\+isda must be given once"),
        ({"method": "mean-teacher", "ema": 0.9}, "ema is not for method mean-teacher"),
        (
            {"method": "vat", "augment": "cutout"},
            "augment must be one of none, translate, translate-flip for method vat",
        ),
        ({"method": "vat", "labelled_per_batch": 51}, "labelled_per_batch must be from 1 to labels=50, .* got 51"),
        ({"method": "vat", "labelled_per_batch": 0}, "labelled_per_batch must be from 1 to labels=50, .* got 0"),
        ({"method": "vat", "labelled_per_batch": "half"}, "labelled_per_batch must be .* or published, got half"),
        ({"method": "vat", "batch_size": 251}, "batch_size must be from 1 to 250, the training images, got 251"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        semi_config(**changes)


def test_every_method_can_be_written_with_its_publications_options():
    for name in NAMES:
        options = semi_config(method=name).method_options
        assert set(defaults_for(name.removesuffix("+isda"), "digits").options) <= set(options)
        text = f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}"
        assert semi_config(method=text).method_options == options


def test_a_supervised_method_of_a_mixed_comparison_takes_the_settings_of_both_tasks():
    """`isda compare --methods isda vat` has the options of both tasks."""
    common = {"network": "fast-cnn", "width": 0.25, "labels": 100, "batch_size": 20, "epochs": 1}
    config = resolve(SemiSettings(method="isda", **common), digits())
    assert config.task == "classification"
    alone = resolve(Settings(method="isda", **common), digits())
    assert replace(config, settings={}) == replace(alone, settings={})
