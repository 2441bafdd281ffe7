"""Losses of logits and labels as training methods, each also available on top of ISDA (``focal+isda``)."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from isda.lab.methods.base import CombinableMethod
from isda.lab.methods.criteria import DisturbLabel, FocalLoss, LabelSmoothing, LqLoss
from isda.lab.networks import Network

if TYPE_CHECKING:
    from isda.lab.tasks.classification.settings import ClassificationConfig


class LossMethod(CombinableMethod):
    """A loss of `isda.lab.methods`.

    The loss takes the cross-entropies (N,) of the samples from ``cross_entropy`` if that is given: ISDA's bound of them
    makes ``focal+isda`` from ``focal``.
    """

    loss_type: ClassVar[type[nn.Module]]
    arguments: ClassVar[tuple[str, ...]]
    """The options that are arguments of the loss."""

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        rows = self.base_criterion(options, network, config, reduction="none")
        given = {name: getattr(options, name) for name in self.arguments}
        self.criterion = self.loss_type(**given, **self.further_arguments(network), cross_entropy=rows)

    def further_arguments(self, network: Network) -> dict[str, Any]:
        """Arguments of the loss that are not options."""
        return {}


def loss_method(
    name: str, loss: type[nn.Module], defaults: dict[str, float], grid: dict[str, tuple[float, ...]]
) -> type[LossMethod]:
    """The method of a loss.

    Args:
        name: of the method.
        loss: one of `isda.lab.methods`.
        defaults: its arguments that are options of the method.
        grid: the values that `isda tune` tries.
    """
    options = make_dataclass(
        f"{loss.__name__}Options",
        [(option, float, field(default=value)) for option, value in defaults.items()],
        frozen=True,
        kw_only=True,
    )
    body = {
        "name": name,
        "Options": options,
        "grid": grid,
        "loss_type": loss,
        "arguments": tuple(defaults),
        "__module__": __name__,
        "__doc__": f"`isda.losses.{loss.__name__}`.",
    }
    return type(f"{loss.__name__}Method", (LossMethod,), body)


@dataclass(frozen=True, kw_only=True)
class DisturbLabelOptions:
    """What may follow ``disturb-label:``."""

    rate: float = 0.05
    """Share of the labels that are drawn anew in a step."""


class DisturbLabelMethod(LossMethod):
    """`DisturbLabel`; its draws follow from the seed, the step and the process."""

    name = "disturb-label"
    Options = DisturbLabelOptions
    grid = {"rate": (0.02, 0.05, 0.1, 0.2, 0.3)}  # noqa: RUF012, a class variable of the base
    families = ("disturb-label",)
    loss_type = DisturbLabel
    arguments = ("rate",)


LOSS_METHODS: tuple[type[LossMethod], ...] = (
    loss_method("label-smoothing", LabelSmoothing, {"smoothing": 0.1}, {"smoothing": (0.02, 0.05, 0.1, 0.2, 0.3)}),
    DisturbLabelMethod,
    loss_method("focal", FocalLoss, {"alpha": 0.5, "gamma": 1.0}, {"gamma": (0.2, 0.5, 1.0, 2.0, 5.0)}),
    loss_method("lq", LqLoss, {"q": 0.4}, {"q": (0.1, 0.2, 0.4, 0.55, 0.7)}),
)
