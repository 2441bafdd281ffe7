"""The paper's Tables 1 to 8, 11 and 12 as experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from isda.lab.reproduce.classifier_trainings import ClassifierTraining, classifier, generator, semi_supervised
from isda.lab.reproduce.costs import CIFAR_NETWORKS, COST_COLUMNS, IMAGENET_NETWORKS, cost_rows, with_times
from isda.lab.reproduce.dense_trainings import detector, segmentation
from isda.lab.reproduce.experiment import TableCell, TableExperiment, matches_words
from isda.lab.reproduce.training import Scale, Training

SMALL_BATCH = 2
"""Of timed steps below the paper's scale; the share of ISDA's time is larger then."""


class CostTable(TableExperiment):
    """A table whose cost columns are counted or measured."""

    networks: ClassVar[Mapping[str, str]]
    """Names of networks by row."""

    def counted_cells(self) -> list[tuple[str, str]]:
        """The cost columns of every network."""
        return [(row, column) for row in self.networks for column in COST_COLUMNS[self.name]]

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """The cost columns; times are measured with the paper's batches at its scale, else with the smallest."""
        columns = COST_COLUMNS[self.name]
        known = {row.name: row for row in cost_rows()}
        values: dict[tuple[str, str], float] = {}
        for row, network in self.networks.items():
            keys = {column: key for column, key in columns.items() if matches_words(only, row, column)}
            costs = known[network]
            if any(key.endswith("_wall_time") for key in keys.values()):
                costs = with_times(costs, device) if scale.full else with_times(costs, device, 1, SMALL_BATCH)
            values |= {(row, column): costs.cells[key].ours for column, key in keys.items()}
        return values


CIFAR_DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}


class Table1(CostTable):
    """Seven networks with and without ISDA, at the strengths that the paper chose."""

    name = "table-1"
    note = "λ0 is the paper's choice for each network. Columns with the results of other papers are not reproduced."
    networks = IMAGENET_NETWORKS

    def cells(self) -> list[TableCell]:
        """Top-1 and top-5 errors, and the improvement of top-1."""
        cells = []
        for row, network in IMAGENET_NETWORKS.items():
            basic, isda = imagenet_pair(network)
            for top, figure in (("top-1", "error"), ("top-5", "error_top5")):
                cells.append(TableCell(row=row, column=f"our implementation {top}", training=basic, figure=figure))
                cells.append(TableCell(row=row, column=f"ISDA {top}", training=isda, figure=figure, base=basic))
            better = "ISDA top-1 improvement"
            cells.append(TableCell(row=row, column=better, training=isda, base=basic, improvement=True))
        return cells


def imagenet_pair(network: str) -> list[ClassifierTraining]:
    """A network without ISDA and with it."""
    return [classifier("imagenet", network, method, tuned=False) for method in ("cross-entropy", "isda")]


class Table2(CostTable):
    """Every network with and without ISDA on both CIFAR sets; parameters are those at full width."""

    name = "table-2"
    note = (
        "The printed parameters of Shake-Shake include shortcuts that the authors' code builds in every block and uses "
        "only where the shape changes."
    )
    networks = CIFAR_NETWORKS

    def cells(self) -> list[TableCell]:
        """Test errors; the strength of ISDA is chosen for each network and set."""
        cells = []
        for row, network in CIFAR_NETWORKS.items():
            for title, data in CIFAR_DATA.items():
                basic, isda = (classifier(data, network, method) for method in ("cross-entropy", "isda"))
                cells.append(TableCell(row=row, column=f"{title} basic", training=basic))
                cells.append(TableCell(row=row, column=f"{title} ISDA", training=isda, base=basic))
        return cells


class Table3(CostTable):
    """Multiply-adds are counted, times are measured: no training."""

    name = "table-3"
    note = "Times are of this machine; below the paper's scale they are measured with batches of 2."
    networks = CIFAR_NETWORKS

    def cells(self) -> list[TableCell]:
        """None."""
        return []


AUGMENTATIONS = {"Cutout": "cutout", "RandAugment": "randaugment", "AutoAugment": "autoaugment"}


RANDAUGMENT_N, RANDAUGMENT_M = (1, 2, 3), (5, 9, 14)
"""Operations and level: RandAugment's publication chooses them on 5,000 held-out images; the values are ours."""
RANDAUGMENT_GRID = (f"augment={','.join(f'randaugment-{n}-{m}' for n in RANDAUGMENT_N for m in RANDAUGMENT_M)}",)


def _augmented_pair(data: str, network: str, augment: str) -> tuple[Training, Training]:
    """The trainings with an augmentation; RandAugment's N and M are chosen without ISDA, which takes them."""
    if augment != "randaugment":
        basic, isda = (classifier(data, network, method, augment=augment) for method in ("cross-entropy", "isda"))
        return basic, isda
    chosen = classifier(data, network, "cross-entropy", tuned=True, search=RANDAUGMENT_GRID)
    return chosen, classifier(data, network, "isda", chosen_from=chosen)


class Table4(TableExperiment):
    """Three networks, three augmentations, both CIFAR sets."""

    name = "table-4"
    note = (
        f"RandAugment's N and M are chosen on held-out images from {', '.join(map(str, RANDAUGMENT_N))} and "
        f"{', '.join(map(str, RANDAUGMENT_M))}, without ISDA; the method with ISDA takes them and chooses its strength."
    )

    def cells(self) -> list[TableCell]:
        """Test errors that the paper prints."""
        cells = []
        for row in self.printed.rows:
            for title, data in CIFAR_DATA.items():
                for heading, augment in AUGMENTATIONS.items():
                    basic, isda = _augmented_pair(data, CIFAR_NETWORKS[row], augment)
                    cells.append(TableCell(row=row, column=f"{title} {heading}", training=basic))
                    cells.append(TableCell(row=row, column=f"{title} {heading} + ISDA", training=isda, base=basic))
        return self.printed_only(cells)


LOSSES = {
    "Large Margin": "large-margin",
    "Disturb Label": "disturb-label",
    "Focal Loss": "focal",
    "Center Loss": "center",
    "Lq Loss": "lq",
    "Label Smoothing": "label-smoothing",
    "DistributionNet": "distribution-net",
}
GENERATORS = {"WGAN": "wgan", "CGAN": "cgan", "ACGAN": "acgan", "infoGAN": "infogan"}
DROPOUT = 0.3
"""Added to ResNet-110; Wide-ResNet-28-10 has dropout in all rows."""


class Table5(TableExperiment):
    """ResNet-110 and Wide-ResNet-28-10 on both CIFAR sets."""

    name = "table-5"
    note = (
        "Other methods have the settings that the paper names, else those of their publications (docs/paper); "
        "ISDA's strength is chosen on held-out images."
    )

    def cells(self) -> list[TableCell]:
        """Test errors that the paper prints."""
        cells = []
        for column in self.printed.columns:
            network, data = column.rsplit(" ", 1)
            rows = self._rows(CIFAR_NETWORKS[network], CIFAR_DATA[data])
            base = rows["Basic"]
            cells += [
                TableCell(row=row, column=column, training=training, base=None if training == base else base)
                for row, training in rows.items()
            ]
        return self.printed_only(cells)

    def _rows(self, network: str, data: str) -> dict[str, Training]:
        wide = network == CIFAR_NETWORKS["Wide-ResNet-28-10"]
        dropout: dict[str, Any] = {} if wide else {"dropout": DROPOUT}
        rows: dict[str, Training] = {
            row: classifier(data, network, method, tuned=False) for row, method in LOSSES.items()
        }
        for row, method in GENERATORS.items():
            dependencies = {"generated": generator(data, method)}
            rows[row] = classifier(data, network, "cross-entropy", dependencies=dependencies)
        for row, method in (("Basic", "cross-entropy"), ("ISDA", "isda")):
            rows[row] = classifier(data, network, method)
            rows[f"{row} + Dropout"] = classifier(data, network, method, **dropout)
        return rows


SEMI_SUPERVISED_METHODS = {
    "Pi-model": "pi-model",
    "Temp-ensemble": "temporal-ensembling",
    "Mean Teacher": "mean-teacher",
    "VAT": "vat",
}
SEMI_SUPERVISED_DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "SVHN": "svhn"}


class Table6(TableExperiment):
    """Four methods with and without ISDA at six numbers of labels."""

    name = "table-6"

    def cells(self) -> list[TableCell]:
        """Test errors that the paper prints."""
        cells = []
        for column in self.printed.columns:
            title, labels = column.rsplit(" ", 1)
            for row, method in SEMI_SUPERVISED_METHODS.items():
                plain, isda = (
                    semi_supervised(SEMI_SUPERVISED_DATA[title], name, int(labels))
                    for name in (method, f"{method}+isda")
                )
                cells.append(TableCell(row=row, column=column, training=plain))
                cells.append(TableCell(row=f"{row} + ISDA", column=column, training=isda, base=plain))
        return self.printed_only(cells)


SEGMENTATION_NETWORKS = {"PSPNet": "pspnet-resnet-101", "DeepLab-v3": "deeplab-v3-resnet-101"}
SEGMENTATION_FIGURES = {
    "single scale": "miou",
    "multi-scale": "miou_multi_scale",
    "multi-scale + flip": "miou_multi_scale_flip",
}


class Table7(TableExperiment):
    """PSPNet and DeepLab-v3 with and without ISDA."""

    name = "table-7"
    note = (
        "λ0 is 7.5, the default of the authors' code. Images are evaluated by sliding windows of the size of training "
        "crops, as in that code. The row of DeepLab-v3's publication is not reproduced."
    )

    def cells(self) -> list[TableCell]:
        """Mean IoU, and its improvement by ISDA."""
        cells = []
        for row, network in SEGMENTATION_NETWORKS.items():
            basic, isda = (segmentation(network, method) for method in ("cross-entropy", "isda"))
            for column, figure in SEGMENTATION_FIGURES.items():
                cells.append(TableCell(row=row, column=column, training=basic, figure=figure))
                ours = TableCell(row=f"{row} + ISDA", column=column, training=isda, figure=figure, base=basic)
                cells += [ours, replace(ours, column=f"{column} improvement", improvement=True)]
        return cells


ABLATION_NETWORK = "wide-resnet-28-10"
ABLATION_METHODS = {
    "Identity matrix": "isda:covariance=identity",
    "Diagonal matrix": "isda:covariance=diagonal",
    "Single covariance matrix": "isda:covariance=shared",
    "Constant lambda_0": "isda:schedule=constant",
    "ISDA": "isda",
}
ABLATION_COLUMNS: dict[str, dict[str, Any]] = {
    "CIFAR-10": {"data": "cifar10"},
    "CIFAR-100": {"data": "cifar100"},
    "CIFAR-100 + Cutout": {"data": "cifar100", "augment": "cutout"},
}


class Table8(TableExperiment):
    """Wide-ResNet-28-10 with parts of ISDA replaced; the strength is chosen for each row."""

    name = "table-8"

    def cells(self) -> list[TableCell]:
        """Test errors."""
        cells = []
        for column, settings in ABLATION_COLUMNS.items():
            basic = classifier(network=ABLATION_NETWORK, method="cross-entropy", **settings)
            cells.append(TableCell(row="Basic", column=column, training=basic))
            for row, method in ABLATION_METHODS.items():
                training = classifier(network=ABLATION_NETWORK, method=method, tuned=True, **settings)
                cells.append(TableCell(row=row, column=column, training=training, base=basic))
        return cells


DETECTORS = {"Faster-RCNN-FPN": "faster-rcnn", "Mask-RCNN-FPN": "mask-rcnn", "Cascade-RCNN-FPN": "cascade-rcnn"}
COCO_FIGURES = {
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

    def cells(self) -> list[TableCell]:
        """COCO's metrics of boxes."""
        return [cell for row, network in DETECTORS.items() for cell in coco_cells(row, network)]


def coco_cells(row: str, network: str, prefix: str = "") -> list[TableCell]:
    """The cells of one detector; ``prefix`` is "mask_" for the metrics of masks."""
    basic, isda = (detector(network, backbone) for backbone in imagenet_pair("resnet-50"))
    trainings = {
        "ResNet-50 (Original)": (detector(network, None), None),
        "ResNet-50 (Our Implementation)": (basic, None),
        "ResNet-50 + ISDA": (isda, basic),
    }
    return [
        TableCell(row=f"{row}, {backbone}", column=column, training=training, figure=prefix + figure, base=base)
        for backbone, (training, base) in trainings.items()
        for column, figure in COCO_FIGURES.items()
    ]


class Table12(TableExperiment):
    """The masks of the Mask R-CNN of Table 11: the same runs."""

    name = "table-12"

    def cells(self) -> list[TableCell]:
        """COCO's metrics of masks."""
        return coco_cells("Mask-RCNN-FPN", "mask-rcnn", "mask_")
