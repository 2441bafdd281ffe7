"""The registry: every cell is one of the paper's, every training has one name, every one can be estimated."""

import math
from dataclasses import fields, replace

import pytest
import torch

from enlarged_digits import enlarged
from isda.lab.engine.search import grid_points, parse_searches
from isda.lab.engine.task import find_task
from isda.lab.networks import create
from isda.lab.reproduce.classifier_trainings import classifier, generator, semi_supervised
from isda.lab.reproduce.experiment import TableExperiment, with_dependencies
from isda.lab.reproduce.printed_tables import TABLES, paper_table
from isda.lab.reproduce.registry import EXPERIMENTS, find_experiments
from isda.lab.reproduce.runner import experiment_progress
from isda.lab.reproduce.training import SCALES
from isda.lab.reproduce.workload import count_size, fitting_width, network_size

EXPERIMENT_TABLES = [one for one in EXPERIMENTS.values() if isinstance(one, TableExperiment)]
GENERATORS = ("wgan", "cgan", "acgan", "infogan")
# Results of other papers, which the paper repeats.
OTHERS = {"table-1": ("column", "reported"), "table-7": ("row", "(Original)")}


def test_there_is_every_table_and_figure_of_the_paper_that_has_results():
    assert [name for name in TABLES if name != "table-9"] == [one.name for one in EXPERIMENT_TABLES]
    figures = [name for name in EXPERIMENTS if name.startswith("figure")]
    assert figures == [f"figure-{number}" for number in (5, 6, 7, 8, 9, 10, 11, 13, 14)]


@pytest.mark.parametrize("experiment", EXPERIMENT_TABLES, ids=lambda one: one.name)
def test_every_number_of_a_table_is_trained_or_counted_but_for_those_of_other_papers(experiment):
    trained = [(cell.row, cell.column) for cell in experiment.cells()]
    assert len(set(trained)) == len(trained)
    printed = {(cell.row, cell.column): cell for cell in paper_table(experiment.name).cells}
    assert set(trained) <= set(printed)
    counted = ("parameters", "additional cost", "standard FLOPs")
    where, word = OTHERS.get(experiment.name, ("row", "nothing at all"))
    for place, cell in printed.items():
        if cell.value is None or place in trained:
            assert cell.value is not None or place not in trained
        else:
            assert any(kind in cell.column for kind in counted) or word in getattr(cell, where)


def test_a_name_means_one_training():
    everything = [one for experiment in EXPERIMENTS.values() for one in experiment.trainings()]
    known = {}
    for one in with_dependencies(everything):
        assert known.setdefault(one.name, one) == one
    for one in everything:
        assert known[one.name] == one
        assert len(one.name) < 200
        assert "/" not in one.name


def test_no_training_is_made_twice_under_two_names():
    """Settings that are written out but equal the default, and what is kept of a run, do not make another training."""
    known = {}
    for one in with_dependencies(two for experiment in EXPERIMENTS.values() for two in experiment.trainings()):
        values = {f.name: getattr(one.settings, f.name) for f in fields(one.settings)}
        defaults = {f.name: f.metadata.get("auto") for f in fields(one.settings)}
        filled = {key: defaults[key] if value is None else value for key, value in values.items()}
        dependencies = sorted((key, two.name) for key, two in one.dependencies.items())
        chosen = getattr(one, "search", ()), getattr(getattr(one, "chosen_from", None), "name", "")
        key = one.task, repr(sorted(filled.items(), key=lambda item: item[0])), repr(dependencies), chosen
        assert known.setdefault(key, one.name) == one.name


def test_figures_5_and_9_need_no_training_of_their_own():
    tables = {one.name for name in ("table-2", "table-4") for one in EXPERIMENTS[name].trainings()}
    for name in ("figure-5", "figure-9"):
        assert {one.name for one in EXPERIMENTS[name].trainings()} <= tables


def test_the_trainings_of_figure_5_are_evaluated_after_every_epoch_at_every_scale(tmp_path):
    for one in EXPERIMENTS["figure-5"].trainings():
        for scale in SCALES.values():
            assert one.at(scale, tmp_path).settings.evaluate_every in (None, 1)
    other = classifier("cifar100", "wide-resnet-28-10", "isda", augment="cutout")
    assert other.at(SCALES["small"], tmp_path).settings.evaluate_every == SCALES["small"].epochs


def test_the_first_seed_of_figure_9s_trainings_keeps_checkpoints_over_the_whole_run():
    assert [one.checkpoints for one in EXPERIMENTS["figure-9"].trainings()] == [20, 20]
    assert sum(one.checkpoints > 0 for one in EXPERIMENTS["table-2"].trainings()) == 2


def test_eta_2_is_chosen_with_isda_and_without():
    for cell in EXPERIMENTS["table-6"].cells():
        grid = cell.training.grid()
        assert cell.training.tuned
        assert len(grid["eta_2"]) == 3
        assert list(grid) == (["lambda_0", "eta_1", "eta_2"] if cell.base else ["eta_2"])


@pytest.mark.parametrize("name", ["table-2", "table-6", "table-8", "figure-11"])
def test_as_many_trials_are_counted_as_the_search_asks_for(name):
    """The searches are set up on small images of the data sets' names; counting needs no data."""
    for training in EXPERIMENTS[name].trainings():
        if not training.tuned or training.settings.data == "cifar100":
            continue
        task, data = find_task(training.task), enlarged(training.settings.data)
        grid = task.grid(replace(training.settings, labels=100, batch_size=20), data)
        options = task.options(training.method)
        assert {key: len(values) for key, values in grid.items()} == {
            key: len(values) for key, values in training.grid().items()
        }
        assert grid.keys() <= options.keys()
        open_values = [len(values) for key, values in grid.items() if f"{key}=" not in training.method]
        assert training.trials(SCALES["paper"]) == math.prod(open_values)
        assert training.trials(SCALES["small"]) == min(3, math.prod(open_values))


@pytest.mark.parametrize(("name", "points"), [("table-4", 9), ("figure-10", 5)])
def test_as_many_trials_are_counted_as_a_search_of_its_own_asks_for(name, points):
    """RandAugment's N and M, and the weight of the uncertainty loss."""
    searching = [training for training in EXPERIMENTS[name].trainings() if training.search]
    assert searching
    for training in searching:
        options = {training.method: find_task(training.task).options(training.method)}
        (searched,) = parse_searches(training.search, options, training.settings, []).values()
        assert len(grid_points(searched)) == points
        assert training.trials(SCALES["paper"]) == points
        assert training.trials(SCALES["smoke"]) == 2


def test_table_6_takes_45_trials_with_isda_and_3_without(tmp_path):
    progress = experiment_progress(EXPERIMENTS["table-6"], SCALES["paper"], 5, tmp_path, None)
    assert progress.runs == 22 * (5 + 45) + 22 * (5 + 3)


def test_more_labelled_images_in_a_step_take_longer(tmp_path):
    one = semi_supervised("cifar10", "pi-model", 4000)
    published = replace(SCALES["paper"], changes={"labelled_per_batch": "published"})
    times = [one.work(scale, tmp_path).operations for scale in (SCALES["paper"], published)]
    assert times[0] / times[1] == pytest.approx((128 + 128) / (128 + 10))


def test_what_a_command_changes_reaches_settings_and_has_a_folder_of_its_own(tmp_path):
    changed = replace(SCALES["smoke"], changes={"precision": "bfloat16", "labelled_per_batch": 7})
    semi, plain = semi_supervised("cifar10", "vat", 4000), classifier("cifar10", "resnet-32", "isda")
    assert semi.at(changed, tmp_path).settings.labelled_per_batch == 7
    assert [one.at(changed, tmp_path).settings.precision for one in (semi, plain)] == ["bfloat16"] * 2
    assert plain.folder_name(changed) == f"{plain.name}-precision=bfloat16"
    assert semi.folder_name(changed) == f"{semi.name}-precision=bfloat16-labelled_per_batch=7"
    assert semi.folder_name(SCALES["smoke"]) == semi.name
    half = plain.work(changed, tmp_path).bytes / plain.work(SCALES["smoke"], tmp_path).bytes
    assert half == pytest.approx(0.5)


def test_tables_share_their_trainings():
    ablation, networks = ({one.name for one in EXPERIMENTS[name].trainings()} for name in ("table-8", "table-2"))
    assert "cifar10-wide-resnet-28-10-isda" in ablation & networks


@pytest.mark.parametrize("scale", ["small", "smoke"])
def test_batches_of_generators_fit_their_networks(scale):
    """WGAN needs equally many images of each of ten classes; 32, the batch of scale small, is no multiple of ten."""
    sizes = {
        method: generator("cifar10", method).scaled(SCALES[scale], None).settings.batch_size for method in GENERATORS
    }
    assert sizes["wgan"] % 10 == 0
    assert sizes["cgan"] == SCALES[scale].batch_size


def test_a_generator_of_the_paper_takes_64_images_for_each_network():
    ratio = [generator("cifar10", method).work(SCALES["paper"], None).operations for method in ("wgan", "cgan")]
    assert ratio[0] / ratio[1] == pytest.approx(10 * 5)


def test_figure_10_chooses_the_strength_once_and_the_uncertainty_weight_of_each_cell():
    for augment, cells in EXPERIMENTS["figure-10"].parts().items():
        (isda,) = [training for cell, training in cells if cell.method == "isda"]
        assert (isda.tuned, isda.search, isda.settings.augment) == (True, (), augment)
        for cell, training in cells[1:]:
            learned = "covariance=learned" in cell.method
            assert (training.tuned, bool(training.search)) == (learned or training is isda, learned)
            assert training is isda or training.chosen_from == isda
    # The paper's Table 4 has the same training.
    table = {training.name for training in EXPERIMENTS["table-4"].trainings()}
    assert "cifar100-wide-resnet-28-10-isda-augment=cutout" in table


def test_figures_6_and_13_are_optimised_as_published_at_the_papers_scale():
    """Appendix: ResNet-32, 10,000 iterations at the rates 10 and 1, no early stop."""
    for name in ("figure-6", "figure-13"):
        figure = EXPERIMENTS[name]
        assert figure.all_trainings()[0].settings.network == "resnet-32"
        options = figure.options(SCALES["paper"])
        assert (options.lr, options.iterations, options.tolerance) == ((10.0, 1.0), 10_000, 0.0)
        assert figure.options(SCALES["smoke"]).lr is None


def test_figures_7_and_14_have_the_resnet_50_of_table_1_if_there_is_a_biggan():
    table = {training.name for training in EXPERIMENTS["table-1"].trainings()}
    for name in ("figure-7", "figure-14"):
        (training,) = EXPERIMENTS[name].with_biggan("package.Class").trainings()
        assert training.name in table
        assert training.settings.network == "resnet-50"
        assert [one.settings.data for one in EXPERIMENTS[name].trainings()] == ["cifar10"] * 2
        # The strength of the authors' script; at their network's own, 7.5, features would move six times as far.
        with_biggan = EXPERIMENTS[name].with_biggan("package.Class")
        assert with_biggan.options(SCALES["paper"]).strength == 0.2
        assert "ResNet-50 with ISDA of Table 1" in with_biggan.note
        assert "--biggan" in EXPERIMENTS[name].note
    assert EXPERIMENTS["figure-6"].with_biggan("package.Class") is EXPERIMENTS["figure-6"]


def test_figure_11_has_the_published_strengths():
    """Section 6.5.4: effective up to 5, slightly worse than baselines at 10."""
    for cells in EXPERIMENTS["figure-11"].parts().values():
        assert [cell.x for cell, _ in cells] == [None, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0]


def test_words_select_whole_names():
    table = EXPERIMENTS["table-2"]
    assert isinstance(table, TableExperiment)
    chosen = table.selected(["resnet-110", "CIFAR-10"])
    assert {(cell.row, cell.column) for cell in chosen} == {
        ("ResNet-110", "CIFAR-10 basic"),
        ("ResNet-110", "CIFAR-10 ISDA"),
    }
    assert table.selected(["CIFAR-1"]) == []


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match="table-2"):
        find_experiments(["tabel-2"])
    with pytest.raises(ValueError, match="name a table or figure"):
        find_experiments([])
    assert len(find_experiments(["all"])) == len(EXPERIMENTS)
    assert [one.name for one in find_experiments(["table-8", "table-8"])] == ["table-8"]


# Counting the largest networks takes seconds.
@pytest.mark.parametrize(
    "names",
    [("table-2", "table-6", "figure-6"), pytest.param(tuple(EXPERIMENTS), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_every_training_can_be_estimated_and_less_of_everything_takes_less(names, tmp_path):
    for one in with_dependencies(two for name in names for two in EXPERIMENTS[name].trainings()):
        works = [one.work(scale, tmp_path) for scale in SCALES.values()]
        for paper, small, smoke in zip(*works, strict=True):
            assert paper / 3 > small > 3 * smoke > 0, one.name


@pytest.mark.parametrize("name", ["resnet-32", "densenet-bc-40-12", "resnext-29-8x64d"])
def test_costs_in_proportion_are_near_those_that_are_counted(name):
    counted = count_size(create(name, num_classes=10, width=0.25), 16)
    assert network_size(name, side=16, width=0.25) == pytest.approx(counted, rel=0.1)


def test_operations_are_six_per_multiply_add_and_image():
    one = classifier("cifar10", "resnet-32", "cross-entropy")
    assert one.work(SCALES["paper"], None).operations == pytest.approx(6 * 69.12e6 * 50_000 * 160, rel=0.01)


def test_elements_are_what_the_layers_put_out():
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten())
    assert count_size(layers, 8) == (8 * 8 * 4 * 27, 3 * 8 * 8 * 4)


def test_networks_are_narrowed_until_they_fit_and_no_further():
    assert fitting_width("wide-resnet-28-10", 0.4e9, side=32) == 0.25
    assert fitting_width("resnet-110", 1e3, side=32) == 0.03125
