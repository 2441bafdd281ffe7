"""What goes into the classifier in a training step, with its graph, for methods whose loss is one of the features.

The forward pass goes through the network as the engine has wrapped it (several processes, compiled); a hook on the
classifier sees its input on the way.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from isda.recording import weight_of

__all__ = ["ClassifierInput"]


class ClassifierInput:
    """Keeps the features of a training pass until they are taken.

    Args:
        classifier: of a network that is not yet wrapped or compiled.

    Example:
        >>> import torch
        >>> classifier = nn.Linear(3, 2)
        >>> inputs = ClassifierInput(classifier)
        >>> features = torch.randn(4, 3)
        >>> logits = classifier(features)
        >>> inputs.take() is features
        True
    """

    def __init__(self, classifier: nn.Linear) -> None:
        self._classifier = classifier
        self._features: Tensor | None = None
        classifier.register_forward_hook(self)

    def __call__(self, classifier: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Keep the input of a pass in training mode."""
        if classifier.training:
            self._features = args[0]

    def take(self) -> Tensor:
        """(N, A) the features of the last training pass; they are kept no longer."""
        features, self._features = self._features, None
        if features is None:
            raise ValueError("features must be recorded by a training pass first, got none since they were taken")
        return features

    @property
    def weight(self) -> Tensor:
        """(C, A) the classifier's weight as it is now."""
        return weight_of(self._classifier)
