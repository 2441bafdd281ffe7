"""The paper's Tables 1 to 8, 11 and 12 as experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from isda.reproduce.classifier_trainings import ClassifierTraining, classifier, generator, semi_supervised
from isda.reproduce.costs import cost_rows, with_times
from isda.reproduce.dense_trainings import detector, segmentation
from isda.reproduce.experiment import TableCell, TableExperiment, matches_words
from isda.reproduce.training import Scale, Training

SMALL_BATCH = 2
"""Of timed steps below the paper's scale; the share of ISDA's time is larger then."""


def counted_costs(
    networks: Mapping[str, str], columns: Mapping[str, str], scale: Scale, device: torch.device, only: Sequence[str]
) -> dict[tuple[str, str], float]:
    """The cells of rows x columns.

    Args:
        networks: names of networks by row.
        columns: keys of a cost row (`isda.reproduce.costs`) by column.
        scale: times are measured with the paper's batches at its own scale, else with the smallest.
        device: where to measure.
        only: words that row and column must have.
    """
    known = {row.name: row for row in cost_rows()}
    found: dict[tuple[str, str], float] = {}
    for row, network in networks.items():
        wanted = {column: key for column, key in columns.items() if matches_words(only, row, column)}
        costs = known[network]
        if any(key.endswith("_wall_time") for key in wanted.values()):
            costs = with_times(costs, device) if scale.full else with_times(costs, device, 1, SMALL_BATCH)
        found |= {(row, column): costs.cells[key].ours for column, key in wanted.items()}
    return found


CIFAR_NETWORKS = {
    "ResNet-32": "resnet-32",
    "ResNet-110": "resnet-110",
    "SE-ResNet-110": "se-resnet-110",
    "Wide-ResNet-16-8": "wide-resnet-16-8",
    "Wide-ResNet-28-10": "wide-resnet-28-10",
    "ResNeXt-29, 8x64d": "resnext-29-8x64d",
    "DenseNet-BC-100-12": "densenet-bc-100-12",
    "Shake-Shake (26, 2x32d)": "shake-shake-26-2x32d",
    "Shake-Shake (26, 2x112d)": "shake-shake-26-2x112d",
}
CIFAR_DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}


IMAGENET_NETWORKS = {
    "ResNet-50": "resnet-50",
    "ResNet-101": "resnet-101",
    "ResNet-152": "resnet-152",
    "DenseNet-BC-121": "densenet-121",
    "DenseNet-BC-265": "densenet-265",
    "ResNeXt-50, 32x4d": "resnext-50-32x4d",
    "ResNeXt-101, 32x8d": "resnext-101-32x8d",
}
IMAGENET_COSTS = {
    "parameters": "parameters",
    "additional cost (theoretical)": "additional_imagenet_relative",
    "additional cost (wall time)": "additional_imagenet_wall_time",
}


class Table1(TableExperiment):
    """Seven networks with and without ISDA, at the strengths that the paper chose."""

    name = "table-1"
    note = "λ0 is the paper's choice for each network. The columns of other papers' results are not ours to make."

    def cells(self) -> list[TableCell]:
        """Top-1 and top-5 errors, and the improvement of top-1."""
        found = []
        for row, network in IMAGENET_NETWORKS.items():
            basic, isda = imagenet_pair(network)
            for top, figure in (("top-1", "error"), ("top-5", "error_top5")):
                found.append(TableCell(row=row, column=f"our implementation {top}", training=basic, figure=figure))
                found.append(TableCell(row=row, column=f"ISDA {top}", training=isda, figure=figure, base=basic))
            found.append(
                TableCell(row=row, column="ISDA top-1 improvement", training=isda, base=basic, improvement=True)
            )
        return found

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """Parameters and costs."""
        return counted_costs(IMAGENET_NETWORKS, IMAGENET_COSTS, scale, device, only)


def imagenet_pair(network: str) -> list[ClassifierTraining]:
    """A network without ISDA and with it."""
    return [classifier("imagenet", network, method, tuned=False) for method in ("cross-entropy", "isda")]


class Table2(TableExperiment):
    """Every network with and without ISDA on both CIFAR sets."""

    name = "table-2"

    def cells(self) -> list[TableCell]:
        """Test errors; the strength of ISDA is chosen for each network and set."""
        found = []
        for row, network in CIFAR_NETWORKS.items():
            for title, data in CIFAR_DATA.items():
                basic, isda = (classifier(data, network, method) for method in ("cross-entropy", "isda"))
                found.append(TableCell(row=row, column=f"{title} basic", training=basic))
                found.append(TableCell(row=row, column=f"{title} ISDA", training=isda, base=basic))
        return found

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """Parameters, of the networks at their full width."""
        return counted_costs(CIFAR_NETWORKS, {"parameters": "parameters"}, scale, device, only)


COST_KINDS = {"absolute": "absolute", "relative": "relative", "wall time": "wall_time"}
COST_COLUMNS = {"standard FLOPs": "multiply_adds"} | {
    f"{title} additional cost ({kind})": f"additional_{data}_{key}"
    for title, data in CIFAR_DATA.items()
    for kind, key in COST_KINDS.items()
}


class Table3(TableExperiment):
    """Multiply-adds are counted, times are measured here: no training."""

    name = "table-3"
    note = "Times are of this machine; below the paper's scale they are measured with batches of 2."

    def cells(self) -> list[TableCell]:
        """None."""
        return []

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """All of them."""
        return counted_costs(CIFAR_NETWORKS, COST_COLUMNS, scale, device, only)


AUGMENTATIONS = {"Cutout": "cutout", "RandAugment": "randaugment", "AutoAugment": "autoaugment"}


class Table4(TableExperiment):
    """Three networks, three augmentations, both CIFAR sets."""

    name = "table-4"

    def cells(self) -> list[TableCell]:
        """Test errors of what the paper has."""
        found = []
        for row in self.printed.rows:
            for title, data in CIFAR_DATA.items():
                for named, augment in AUGMENTATIONS.items():
                    basic, isda = (
                        classifier(data, CIFAR_NETWORKS[row], method, augment=augment)
                        for method in ("cross-entropy", "isda")
                    )
                    found.append(TableCell(row=row, column=f"{title} {named}", training=basic))
                    found.append(TableCell(row=row, column=f"{title} {named} + ISDA", training=isda, base=basic))
        printed = {(cell.row, cell.column) for cell in self.printed.cells if cell.value is not None}
        return [cell for cell in found if (cell.row, cell.column) in printed]


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
"""Added to ResNet-110; Wide-ResNet-28-10 has it in all of its rows."""


class Table5(TableExperiment):
    """ResNet-110 and Wide-ResNet-28-10 on both CIFAR sets."""

    name = "table-5"
    note = "The rivals have the settings that the paper chose for them, ISDA's strength is chosen on held-out images."

    def cells(self) -> list[TableCell]:
        """Test errors of what the paper has."""
        found = []
        for column in self.printed.columns:
            network, data = column.rsplit(" ", 1)
            rows = self._rows(CIFAR_NETWORKS[network], CIFAR_DATA[data])
            base = rows["Basic"]
            found += [
                TableCell(row=row, column=column, training=one, base=None if one == base else base)
                for row, one in rows.items()
            ]
        printed = {(cell.row, cell.column) for cell in self.printed.cells if cell.value is not None}
        return [cell for cell in found if (cell.row, cell.column) in printed]

    def _rows(self, network: str, data: str) -> dict[str, Training]:
        wide = network == CIFAR_NETWORKS["Wide-ResNet-28-10"]
        dropout: dict[str, Any] = {} if wide else {"dropout": DROPOUT}
        found: dict[str, Training] = {
            row: classifier(data, network, method, tuned=False) for row, method in LOSSES.items()
        }
        for row, method in GENERATORS.items():
            needs = {"generated": generator(data, method)}
            found[row] = classifier(data, network, "cross-entropy", needs=needs)
        found["Basic"] = classifier(data, network, "cross-entropy")
        found["Basic + Dropout"] = classifier(data, network, "cross-entropy", **dropout)
        found["ISDA"] = classifier(data, network, "isda")
        found["ISDA + Dropout"] = classifier(data, network, "isda", **dropout)
        return found


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
        """Test errors of what the paper has."""
        found = []
        for column in self.printed.columns:
            title, labels = column.rsplit(" ", 1)
            for row, method in SEMI_SUPERVISED_METHODS.items():
                plain, isda = (
                    semi_supervised(SEMI_SUPERVISED_DATA[title], name, int(labels))
                    for name in (method, f"{method}+isda")
                )
                found.append(TableCell(row=row, column=column, training=plain))
                found.append(TableCell(row=f"{row} + ISDA", column=column, training=isda, base=plain))
        printed = {(cell.row, cell.column) for cell in self.printed.cells if cell.value is not None}
        return [cell for cell in found if (cell.row, cell.column) in printed]


SEGMENTATION_NETWORKS = {"PSPNet": "pspnet-resnet-101", "DeepLab-v3": "deeplab-v3-resnet-101"}
SEGMENTATION_FIGURES = {
    "single scale": "miou",
    "multi-scale": "miou_multi_scale",
    "multi-scale + flip": "miou_multi_scale_flip",
}


class Table7(TableExperiment):
    """PSPNet and DeepLab-v3 with and without ISDA."""

    name = "table-7"
    note = "λ0 is 7.5, the default of the authors' code. The row of DeepLab-v3's publication is not ours to make."

    def cells(self) -> list[TableCell]:
        """Mean IoU, and by how much ISDA improves it."""
        found = []
        for row, network in SEGMENTATION_NETWORKS.items():
            basic, isda = (segmentation(network, method) for method in ("cross-entropy", "isda"))
            for column, figure in SEGMENTATION_FIGURES.items():
                found.append(TableCell(row=row, column=column, training=basic, figure=figure))
                ours = f"{row} + ISDA"
                found.append(TableCell(row=ours, column=column, training=isda, figure=figure, base=basic))
                better = f"{column} improvement"
                found.append(
                    TableCell(row=ours, column=better, training=isda, figure=figure, base=basic, improvement=True)
                )
        return found


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
        found = []
        for column, said in ABLATION_COLUMNS.items():
            basic = classifier(network=ABLATION_NETWORK, method="cross-entropy", **said)
            found.append(TableCell(row="Basic", column=column, training=basic))
            for row, method in ABLATION_METHODS.items():
                one = classifier(network=ABLATION_NETWORK, method=method, tuned=True, **said)
                found.append(TableCell(row=row, column=column, training=one, base=basic))
        return found


DETECTORS = {
    "Faster-RCNN-FPN": "faster-rcnn",
    "Mask-RCNN-FPN": "mask-rcnn",
    "Cascade-RCNN-FPN": "cascade-rcnn",
}
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
        """COCO's figures of boxes."""
        return [cell for row, network in DETECTORS.items() for cell in coco_cells(row, network)]


def coco_cells(row: str, network: str, prefix: str = "") -> list[TableCell]:
    """The cells of one detector; ``prefix`` is "mask_" for the figures of masks."""
    basic, isda = (detector(network, backbone) for backbone in imagenet_pair("resnet-50"))
    trainings = {
        "ResNet-50 (Original)": (detector(network, None), None),
        "ResNet-50 (Our Implementation)": (basic, None),
        "ResNet-50 + ISDA": (isda, basic),
    }
    return [
        TableCell(row=f"{row}, {backbone}", column=column, training=one, figure=prefix + figure, base=base)
        for backbone, (one, base) in trainings.items()
        for column, figure in COCO_FIGURES.items()
    ]


class Table12(TableExperiment):
    """The masks of the Mask R-CNN of Table 11: the same runs."""

    name = "table-12"

    def cells(self) -> list[TableCell]:
        """COCO's figures of masks."""
        return coco_cells("Mask-RCNN-FPN", "mask-rcnn", "mask_")
