"""Table 11: object detection on backbones with and without ISDA."""

from __future__ import annotations

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.tables.table_1 import imagenet_pair
from isda.reproduce.trainings import detector

__all__ = ["FIGURES", "Table11", "coco_cells"]

NETWORKS = {
    "Faster-RCNN-FPN": "faster-rcnn",
    "Mask-RCNN-FPN": "mask-rcnn",
    "Cascade-RCNN-FPN": "cascade-rcnn",
}
FIGURES = {
    "mAP": "ap",
    "AP50": "ap50",
    "AP75": "ap75",
    "mAP_S": "ap_small",
    "mAP_M": "ap_medium",
    "mAP_L": "ap_large",
}


class Table11(TableExperiment):
    """Three detectors, each on three backbones."""

    name = "table-11"
    note = "The backbones are the ResNet-50 of Table 1 with the first seed, and torchvision's in the rows (Original)."

    def cells(self) -> list[Cell]:
        """COCO's figures of boxes."""
        return [cell for row, network in NETWORKS.items() for cell in coco_cells(row, network)]


def coco_cells(row: str, network: str, prefix: str = "") -> list[Cell]:
    """The cells of one detector; ``prefix`` is "mask_" for the figures of masks."""
    basic, isda = (detector(network, backbone) for backbone in imagenet_pair("resnet-50"))
    trainings = {
        "ResNet-50 (Original)": (detector(network, None), None),
        "ResNet-50 (Our Implementation)": (basic, None),
        "ResNet-50 + ISDA": (isda, basic),
    }
    return [
        Cell(row=f"{row}, {backbone}", column=column, training=one, figure=prefix + figure, base=base)
        for backbone, (one, base) in trainings.items()
        for column, figure in FIGURES.items()
    ]
