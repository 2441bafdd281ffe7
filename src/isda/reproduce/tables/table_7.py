"""Table 7: segmentation of Cityscapes."""

from __future__ import annotations

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.trainings import segmentation

__all__ = ["Table7"]

NETWORKS = {"PSPNet": "pspnet-resnet-101", "DeepLab-v3": "deeplab-v3-resnet-101"}
FIGURES = {
    "single scale": "miou",
    "multi-scale": "miou_multi_scale",
    "multi-scale + flip": "miou_multi_scale_flip",
}


class Table7(TableExperiment):
    """PSPNet and DeepLab-v3 with and without ISDA."""

    name = "table-7"
    note = "λ0 is 7.5, the default of the authors' code. The row of DeepLab-v3's publication is not ours to make."

    def cells(self) -> list[Cell]:
        """Mean IoU, and by how much ISDA improves it."""
        found = []
        for row, network in NETWORKS.items():
            basic, isda = (segmentation(network, method) for method in ("cross-entropy", "isda"))
            for column, figure in FIGURES.items():
                found.append(Cell(row=row, column=column, training=basic, figure=figure))
                ours = f"{row} + ISDA"
                found.append(Cell(row=ours, column=column, training=isda, figure=figure, base=basic))
                better = f"{column} improvement"
                found.append(Cell(row=ours, column=better, training=isda, figure=figure, base=basic, improvement=True))
        return found
