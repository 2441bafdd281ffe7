"""Parameters and multiply-adds of a network, and the multiply-adds that ISDA adds."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from isda.lab.choices import check_choice
from isda.lab.devices import in_eval_mode


def count_parameters(network: nn.Module) -> int:
    """The number of trained parameters.

    Example:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def count_multiply_adds(network: nn.Module, input_shape: Sequence[int]) -> int:
    """The multiply-adds of one forward pass of one sample: those of convolutions and matrix products, nothing else.

    Counted in evaluation mode on shapes without data (the meta device). ``input_shape`` is the shape of one sample.

    Example:
        >>> count_multiply_adds(nn.Linear(3, 2), input_shape=(3,))
        6
    """
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    with torch.no_grad(), in_eval_mode(network), FlopCounterMode(display=False) as counter:
        functional_call(network, shapes, (torch.empty(1, *input_shape, device="meta"),))
    # FlopCounterMode counts a multiplication and an addition as two operations.
    return counter.get_total_flops() // 2


def additional_multiply_adds(
    feature_dim: int, num_classes: int, batch_size: int, covariance: Literal["full", "diagonal"] = "full"
) -> float:
    r"""The multiply-adds that ISDA adds for one training sample, as the paper's tables count them.

    With D features, C classes and N samples per update, for full covariances

    .. math:: D^2 + C D^2 + 2 C D + 3 C D^2 / N

    - :math:`D^2`: the sample's outer product, added to the covariance of its class (the paper's :math:`O(D^2)`);
    - :math:`C (D^2 + 2 D)`: for each class j the difference :math:`v = w_j - w_y`, the product :math:`\Sigma v` and
      its product with v (the paper's :math:`O(C D^2)`);
    - :math:`3 C D^2 / N`: once per batch, merging the batch's covariances into the running ones: for each entry of
      each class one product with the old, the new and the between-means term (eq. cv).

    The paper prints the results of its count but no formula. This one gives 17 of the 18 absolute values of its table
    of CIFAR costs to the last printed digit (the other, ResNeXt-29 on CIFAR-100, is 0.4% off).

    For diagonal covariances (ImageNet) it is D + 5 C D + 3 C D / N. The same accounting explains 3 of the 5
    (difference, square, product with the variance); 5 is fitted to the costs that the paper prints, not derived.

    Example:
        Wide-ResNet-28-10 on CIFAR-100; the paper prints 42.46M.

        >>> additional_multiply_adds(640, 100, 128) / 1e6
        42.4576
    """
    if check_choice("covariance", covariance, ("full", "diagonal")) == "full":
        entries, per_class = feature_dim**2, feature_dim**2 + 2 * feature_dim
    else:
        entries, per_class = feature_dim, 5 * feature_dim
    return entries + num_classes * per_class + 3 * num_classes * entries / batch_size
