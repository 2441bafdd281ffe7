"""Table 12: instance segmentation on backbones with and without ISDA."""

from __future__ import annotations

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.tables.table_11 import coco_cells

__all__ = ["Table12"]


class Table12(TableExperiment):
    """The masks of the Mask R-CNN of Table 11: the same runs."""

    name = "table-12"

    def cells(self) -> list[Cell]:
        """COCO's figures of masks."""
        return coco_cells("Mask-RCNN-FPN", "mask-rcnn", "mask_")
