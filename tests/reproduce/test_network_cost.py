"""Counting parameters, multiply-adds and ISDA's additional multiply-adds, and the paper's columns."""

import pytest
import torch
from torch import nn

from isda.lab import networks
from isda.lab.networks import additional_multiply_adds, count_multiply_adds, count_parameters
from isda.lab.reproduce.costs import cost_record, cost_rows, cost_tables, paper_costs
from isda.lab.reproduce.printed_tables import PaperCell

CIFAR = [
    "resnet-32",
    "resnet-110",
    "se-resnet-110",
    "wide-resnet-16-8",
    "wide-resnet-28-10",
    "resnext-29-8x64d",
    "densenet-bc-100-12",
    "shake-shake-26-2x32d",
    "shake-shake-26-2x112d",
]
IMAGENET = [
    "resnet-50",
    "resnet-101",
    "resnet-152",
    "densenet-121",
    "densenet-265",
    "resnext-50-32x4d",
    "resnext-101-32x8d",
]


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in cost_rows()}


def agrees(ours, printed, tolerance):
    """Within the tolerance, or within half a unit of the last digit that the paper prints."""
    digits = len(printed[:-1].partition(".")[2])
    half_unit = number_of(f"{0.5 * 10.0**-digits:.{digits + 1}f}{printed[-1]}")
    return abs(ours - number_of(printed)) <= max(tolerance * number_of(printed), half_unit)


def number_of(printed):
    return PaperCell(row="", column="", printed=printed, source="").value


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        *zip(CIFAR, ["0.5M", "1.7M", "1.7M", "11.0M", "36.5M", "34.4M", "0.8M", "3.0M", "36.4M"], strict=True),
        *zip(IMAGENET, ["25.6M", "44.6M", "60.3M", "8.0M", "33.3M", "25.0M", "88.8M"], strict=True),
    ],
)
def test_parameters_are_those_of_the_paper(rows, name, printed):
    assert agrees(rows[name].cells["parameters"].ours, printed, 0.025)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        *zip(
            CIFAR,
            ["69.43M", "254.20M", "254.73M", "1.55G", "5.25G", "5.39G", "292.38M", "426.69M", "5.13G"],
            strict=True,
        )
    ],
)
def test_multiply_adds_are_those_of_the_paper(rows, name, printed):
    ours = rows[name].cells["multiply_adds"].ours
    assert abs(ours - number_of(printed)) <= 0.025 * number_of(printed)


@pytest.mark.parametrize(("name", "features"), [*zip(CIFAR, (64, 64, 64, 512, 640, 1024, 342, 128, 448), strict=True)])
def test_feature_dimensions_are_those_of_the_paper(rows, name, features):
    assert rows[name].feature_dim == features


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("cifar10_absolute", "0.05M 0.05M 0.05M 2.96M 4.61M 11.80M 1.35M 0.19M 2.31M"),
        ("cifar10_relative", "0.07% 0.02% 0.02% 0.19% 0.09% 0.22% 0.46% 0.04% 0.05%"),
        ("cifar100_absolute", "0.44M 0.44M 0.44M 27.19M 42.46M 109.00M 12.43M 1.76M 21.30M"),
        ("cifar100_relative", "0.63% 0.17% 0.17% 1.76% 0.81% 2.02% 4.25% 0.41% 0.42%"),
        ("imagenet_relative", "0.25% 0.13% 0.09% 0.20% 0.24% 0.24% 0.06%"),
    ],
)
def test_isda_adds_what_the_paper_prints(rows, column, cells):
    for name, printed in zip(IMAGENET if "imagenet" in column else CIFAR, cells.split(), strict=True):
        assert agrees(rows[name].cells[f"additional_{column}"].ours, printed, 0.1), name


def test_full_covariance_costs_equal_17_of_the_papers_18_cells_to_the_last_digit(rows):
    exact, others = 0, []
    for name in CIFAR:
        for key in ("additional_cifar10_absolute", "additional_cifar100_absolute"):
            cell = rows[name].cells[key]
            if f"{cell.ours / 1e6:.2f}M" == cell.paper.printed:
                exact += 1
            else:
                others.append((name, key, round(cell.deviation, 1)))
    assert exact == 17
    assert others == [("resnext-29-8x64d", "additional_cifar100_absolute", -0.4)]


def test_the_paper_lists_exactly_these_networks_and_each_is_known():
    assert list(paper_costs()) == CIFAR + IMAGENET
    assert set(paper_costs()) <= set(networks.names())


def test_convolutions_and_matrix_products_are_counted_and_nothing_else():
    network = nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),  # 4x4 positions, 8 outputs from 2 channels and 9 pixels
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    assert count_multiply_adds(network, (4, 8, 8)) == 16 * 8 * 2 * 9 + 128 * 10
    assert count_parameters(network) == (8 * 2 * 9 + 8) + 16 + (128 * 10 + 10)


def test_counting_leaves_the_network_as_it_was():
    torch.manual_seed(0)
    network = networks.create("resnet-8", num_classes=10).train()
    network.body.stage1.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    count_multiply_adds(network, (3, 32, 32))
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_count_is_the_same_with_weights_and_without():
    with torch.device("meta"):
        shapes = networks.create("densenet-bc-40-12", num_classes=10)
    real = networks.create("densenet-bc-40-12", num_classes=10)
    assert count_multiply_adds(shapes, (3, 32, 32)) == count_multiply_adds(real, (3, 32, 32))


def test_frozen_parameters_are_not_counted():
    network = nn.Linear(3, 2)
    network.weight.requires_grad_(False)
    assert count_parameters(network) == 2


def test_full_and_diagonal_costs_grow_with_the_square_and_the_dimension():
    full = [additional_multiply_adds(dimension, 10, 128) for dimension in (1000, 2000)]
    diagonal = [additional_multiply_adds(dimension, 10, 128, "diagonal") for dimension in (1000, 2000)]
    assert full[1] / full[0] == pytest.approx(4, rel=0.01)
    assert diagonal[1] / diagonal[0] == pytest.approx(2)


def test_an_unknown_covariance_is_named():
    with pytest.raises(ValueError, match="covariance must be one of full, diagonal, got 'low_rank'"):
        additional_multiply_adds(64, 10, 128, "low_rank")


def test_a_record_holds_ours_the_papers_and_the_deviation(rows):
    flat = cost_record(rows["resnet-110"])
    assert flat["parameters_paper"] == 1.7e6
    assert flat["parameters_deviation_percent"] == pytest.approx(100 * (flat["parameters"] / 1.7e6 - 1))
    assert cost_record(rows["fast-cnn"])["parameters_paper"] is None


def test_every_network_is_in_one_of_the_two_tables(rows):
    assert sum(table.row_count for table in cost_tables(list(rows.values()))) == len(networks.names())
