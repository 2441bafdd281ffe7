"""Networks that label every pixel: PSPNet and DeepLab-v3 on dilated residual networks, as the paper trains them.

>>> from isda.networks import segmentation
>>> network = segmentation.create("pspnet-resnet-18", num_classes=19, width=0.25)
>>> network.feature_dim, network.auxiliary_dim
(32, 32)
"""

from isda.networks.segmentation.batch_norm import freeze_batch_norm
from isda.networks.segmentation.network import DenseOutputs, SegmentationNetwork
from isda.networks.segmentation.registry import create, names

__all__ = ["DenseOutputs", "SegmentationNetwork", "create", "freeze_batch_norm", "names"]
