"""Table 1: ImageNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.scale import Scale
from isda.reproduce.tables.costs import counted_costs
from isda.reproduce.trainings import classifier
from isda.reproduce.trainings.classification import ClassifierTraining

__all__ = ["Table1", "imagenet_pair"]

NETWORKS = {
    "ResNet-50": "resnet-50",
    "ResNet-101": "resnet-101",
    "ResNet-152": "resnet-152",
    "DenseNet-BC-121": "densenet-121",
    "DenseNet-BC-265": "densenet-265",
    "ResNeXt-50, 32x4d": "resnext-50-32x4d",
    "ResNeXt-101, 32x8d": "resnext-101-32x8d",
}
COSTS = {
    "parameters": "parameters",
    "additional cost (theoretical)": "additional_imagenet_relative",
    "additional cost (wall time)": "additional_imagenet_wall_time",
}


class Table1(TableExperiment):
    """Seven networks with and without ISDA, at the strengths that the paper chose."""

    name = "table-1"
    note = "λ0 is the paper's choice for each network. The columns of other papers' results are not ours to make."

    def cells(self) -> list[Cell]:
        """Top-1 and top-5 errors, and the improvement of top-1."""
        found = []
        for row, network in NETWORKS.items():
            basic, isda = imagenet_pair(network)
            for top, figure in (("top-1", "error"), ("top-5", "error_top5")):
                found.append(Cell(row=row, column=f"our implementation {top}", training=basic, figure=figure))
                found.append(Cell(row=row, column=f"ISDA {top}", training=isda, figure=figure, base=basic))
            found.append(Cell(row=row, column="ISDA top-1 improvement", training=isda, base=basic, improvement=True))
        return found

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """Parameters and costs."""
        return counted_costs(NETWORKS, COSTS, scale, device, only)


def imagenet_pair(network: str) -> list[ClassifierTraining]:
    """A network without ISDA and with it."""
    return [classifier("imagenet", network, method, tuned=False) for method in ("cross-entropy", "isda")]
