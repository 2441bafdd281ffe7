"""What the tables on CIFAR share: the names of networks and data sets, in the paper and here."""

from __future__ import annotations

__all__ = ["DATA", "NETWORKS"]

NETWORKS = {
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
DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
