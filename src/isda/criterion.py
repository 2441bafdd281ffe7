"""What ISDALoss, ExplicitLoss and ISDABCELoss share: attaching to a model, the strength, the inputs of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda import covariance as covariances
from isda._checks import check_choice, check_class_weight, check_integer, check_number, check_weight
from isda.attach import Recorder

Criterion = TypeVar("Criterion", bound="AugmentedLoss")
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


class AugmentedLoss(nn.Module):
    """A loss over features a~ ~ N(a, lambda Sigma), where lambda = lambda_0 min(t / T, 1) grows with forwards t."""

    step: Tensor
    class_weight: Tensor | None
    recorder: Recorder | None = None
    learned_from: tuple[Tensor, ...] = ()
    """The features of a call that failed after it had learned from them; in a tuple, for parameters are no state."""
    margin_variance: Tensor | None = None
    """What lambda/2 multiplied in the latest training call, as a mean over its rows and classes; for logs."""

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        covariance: str | covariances.Covariance = "full",
        matrices: int | None = None,
        reduction: str = "mean",
        class_weight: Tensor | None = None,
        align_corners: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        super().__init__()
        self.num_classes = check_integer("num_classes", num_classes)
        self.feature_dim = check_integer("feature_dim", feature_dim)
        self.lambda_0 = check_number("lambda_0", lambda_0, high=1e18)
        self.total_steps = None if total_steps is None else check_integer("total_steps", total_steps)
        self.reduction = check_choice("reduction", reduction, ("mean", "sum", "none"))
        self.align_corners = align_corners
        check_class_weight("class_weight", class_weight, self.num_classes)
        settings = {"device": device, "dtype": dtype, **covariance_settings}
        self.covariance = covariances.create(covariance, matrices or self.num_classes, self.feature_dim, **settings)
        self.register_buffer("class_weight", class_weight if class_weight is None else class_weight.to(device))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))

    @classmethod
    def attach(
        cls: type[Criterion],
        model: nn.Module,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        epochs: int | None = None,
        loader: Any = None,
        classifier: nn.Module | str | list[nn.Module | str] | None = None,
        sample: Any = None,
        **settings: Any,
    ) -> Criterion:
        """A criterion for a model, whose classifier it finds and whose features it records.

        ``criterion(model(x), targets)`` then works like nn.CrossEntropyLoss; and it is nn.CrossEntropyLoss while the
        classifier or the criterion is in eval mode, or without gradients.

        Args:
            model: a network that ends in an nn.Linear or an nn.Conv2d, or in several whose outputs are averaged.
            lambda_0: strength at the end of training.
            total_steps: T, the number of training forwards; or pass epochs and loader.
            epochs: of the training.
            loader: of the training batches.
            classifier: the last layer or its name, or a list of those that are averaged, where it is not found.
            sample: a batch of inputs; the model is run once, and the classifier is what made its outputs.
            **settings: of the criterion.

        Example:
            >>> from isda import ISDALoss
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> criterion = ISDALoss.attach(model, lambda_0=0.5, total_steps=10)
            >>> criterion(model(torch.randn(6, 4)), torch.arange(6) % 3).backward()
            >>> criterion.strength
            0.05
        """
        if (epochs is None) != (loader is None) or (epochs is not None and total_steps is not None):
            raise ValueError("the length of the training is either total_steps, or epochs and loader together")
        if epochs is not None:
            total_steps = check_integer("epochs", epochs) * len(loader)
        recorder, make = Recorder(model, classifier, sample), cast(Any, cls)
        try:
            weight = recorder.weight
            settings = {"device": weight.device, "dtype": weight.dtype, **settings}
            criterion = make(*weight.shape, lambda_0, total_steps, **settings)
        except BaseException:
            recorder.detach()
            raise
        criterion.recorder = recorder
        return cast(Criterion, criterion)

    def detach(self) -> None:
        """Leave the model as it was before ``attach``; statistics and step stay."""
        if self.recorder is not None:
            self.recorder.detach()
            self.recorder = None

    @property
    def strength(self) -> float:
        """The current lambda = lambda_0 min(t / T, 1)."""
        return self.lambda_0 * min(int(self.step) / self.length(), 1) if self.lambda_0 else 0.0

    def current_strength(self) -> Tensor:
        """The same as a tensor; reading it does not wait for a device."""
        return self.lambda_0 * (self.step.to(self.covariance.mean.dtype) / self.length()).clamp(max=1)

    def length(self) -> int:
        """T, if it was given."""
        if self.total_steps is None:
            raise ValueError("total_steps must be given, the number of training steps over which lambda grows")
        return self.total_steps

    def set_step(self, step: int) -> None:
        """Set t, for those who count steps themselves; training forwards go on from there.

        Example:
            >>> from isda import ISDALoss
            >>> criterion = ISDALoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100)
            >>> criterion.set_step(20)
            >>> criterion.strength
            0.1
        """
        self.step.fill_(check_integer("step", step, 0))

    # -- parts of a call ---------------------------------------------------------------------------------------------

    def trains(self, strength: float | Tensor | None) -> bool:
        """Whether a call learns and augments: in training mode, with gradients, for a strength that is not 0."""
        training = self.training and torch.is_grad_enabled() and (self.lambda_0 > 0 or strength is not None)
        if training and not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise RuntimeError("the criterion is called inside torch.utils.checkpoint: checkpoint the model alone")
        return training

    def strength_of_call(self, strength: float | Tensor | None) -> Tensor | float:
        """Lambda as given, or the current one."""
        if strength is None:
            return self.current_strength()
        return strength.detach() if isinstance(strength, Tensor) else check_number("strength", strength, high=1e18)

    def inputs(
        self, logits: Tensor, features: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool] | None:
        """Features, weight and whether to learn, as given or as recorded; None for a classifier in eval mode."""
        if features is None:
            if self.recorder is None:
                raise ValueError("pass features= and weight=, or make the criterion by attach(model)")
            found = self.recorder.find(logits)
            if found is None:
                return None
            features, recorded, learns = found
            weight = recorded if weight is None else weight
        else:
            learns = all(features is not learned for learned in self.learned_from)
            if self.recorder is not None:
                self.recorder.found = None
        return features, weight, learns

    def checked_weight(self, logits: Tensor, weight: Tensor | None) -> Tensor:
        """The weight (C, A) as given or of the attached classifier, in the dtype of the statistics; logits checked."""
        if logits.ndim < 2 or logits.shape[1] != self.num_classes or not logits.is_floating_point():
            raise ValueError(
                f"logits must be floating point of shape (N, {self.num_classes}, ...), got {logits.dtype} of shape "
                f"{tuple(logits.shape)}"
            )
        if weight is None:
            if self.recorder is None:
                raise ValueError("weight= must be given: the (C, A) weight of the classifier")
            weight = self.recorder.weight
        mean = self.covariance.mean
        if mean.device != logits.device:
            raise ValueError(f"the criterion is on {mean.device}, logits on {logits.device}: use criterion.to(device)")
        return check_weight(weight, self.num_classes, self.feature_dim, logits.device).to(mean.dtype)

    def learn(self, features: Tensor, rows: Tensor, labels: Tensor, counted: Tensor | None) -> None:
        """Update the statistics; a call that fails later and is repeated does not count twice."""
        self.covariance.update(rows, labels, counted)
        self.learned_from = (features,)
        if self.recorder is not None:
            self.recorder.count()

    def advance(self, strength: float | Tensor | None) -> None:
        """One training forward is done; it counts if this call, or one before it that failed, has learned."""
        if self.learned_from and strength is None:
            self.step = self.step + 1  # not in place: compilers compute lambda again in the backward pass
        self.learned_from = ()

    def resize(self, tensor: Tensor, size: torch.Size) -> Tensor:
        """Linear interpolation of (N, C, ...) to a size; nothing if it has it."""
        if tensor.ndim == 2 or tensor.shape[2:] == size:
            return tensor
        return F.interpolate(tensor, size=size, mode=LINEAR[tensor.ndim - 2], align_corners=self.align_corners)

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *args: Any) -> None:
        if any(name.startswith((f"{prefix}schedule.", f"{prefix}covariance.offset")) for name in state):
            raise ValueError(
                "this state was saved by an isda before 0.5, whose statistics have another form: train again"
            )
        super()._load_from_state_dict(state, prefix, *args)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"lambda_0={self.lambda_0:g}, total_steps={self.total_steps}, reduction={self.reduction!r}"


def in_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in its own dtype where that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
