"""Segmentation networks of the paper: PSPNet and DeepLab-v3 on dilated residual networks.

>>> from isda.lab.networks import segmentation
>>> network = segmentation.create("pspnet-resnet-18", num_classes=19, width=0.25)
>>> network.feature_dim, network.auxiliary_dim
(32, 32)
"""

from isda.lab.networks.segmentation.backbone import freeze_batch_norm
from isda.lab.networks.segmentation.network import DenseOutputs, SegmentationNetwork, create, names

__all__ = ["DenseOutputs", "SegmentationNetwork", "create", "freeze_batch_norm", "names"]
