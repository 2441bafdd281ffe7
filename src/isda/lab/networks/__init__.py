"""Classification networks of the paper, smaller variants of them, and their cost.

>>> from isda.lab import networks
>>> network = networks.create("resnet-110", num_classes=100)
>>> network.feature_dim
64
"""

from isda.lab.networks.cost import additional_multiply_adds, count_multiply_adds, count_parameters
from isda.lab.networks.network import Network
from isda.lab.networks.registry import create, names

__all__ = ["Network", "additional_multiply_adds", "count_multiply_adds", "count_parameters", "create", "names"]
