"""Fit the classifier of a trained network again, on its own features, by the convex solver of ISDAClassifier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import Tensor, nn

from isda._utils.devices import in_eval_mode
from isda.attach import find_classifier
from isda.estimator.classifier import ISDAClassifier
from isda.estimator.data import EncodedData, Standardize, class_factors
from isda.estimator.fitting import cross_validated_logits, seed_of, stratified_folds

_STOCHASTIC = ("hidden", "unlabelled", "consistency", "warm_start")
_SHOWN_CLASSES = 10


class RefitFigures(NamedTuple):
    """How well a classifier predicts samples."""

    log_likelihood: float
    """Mean log p(y | x) in nats."""
    error: float
    """In percent."""


class RefitResult(NamedTuple):
    """The result of `refit`; printed, it is a small table."""

    before: RefitFigures
    """Of the classifier as it was, on the samples of the loader."""
    after: RefitFigures
    """Of the new one, on the samples that it was fitted to."""
    held_out: RefitFigures | None
    """Of the new one, by cross-validation; None if every class has a single sample, so that nothing is held out."""
    lambda_0: float
    C: float
    scale: float
    standardize: Standardize
    estimator: ISDAClassifier
    """Fitted to the features; its rows are the inputs of the classifier."""

    def __str__(self) -> str:
        settings = f"lambda_0={self.lambda_0:g}, C={self.C:g}, scale={self.scale:.3g}, standardize={self.standardize}"
        lines = [f"classifier fitted again: {settings}", f"{'':28}log-likelihood   error"]
        rows = {"before, all samples": self.before, "after, all samples": self.after, "after, held out": self.held_out}
        for name, figures in rows.items():
            if figures is not None:
                lines.append(f"{name:28}{figures.log_likelihood:14.3f}{figures.error:7.1f}%")
        return "\n".join(lines)


def refit(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    classifier: nn.Module | str | None = None,
    verbose: bool = True,
    **settings: Any,
) -> RefitResult:
    """Fit the classifier of a trained network again by implicit semantic data augmentation, without training.

    The model runs once over the loader, in eval mode and without gradients. An `ISDAClassifier` is fitted to the inputs
    of the classifier: the optimum of its convex problem, with lambda_0, C, a scale and the scaling of features chosen
    by cross-validation. Its weight and bias are written to the classifier in place; all other parameters, buffers and
    the training mode of every module stay as they are. Use samples that the network was not trained on, if there are
    some: its features separate those that it was trained on too well.

    Args:
        model: a network whose last layer is an nn.Linear, or a 1x1 nn.Conv2d on pooled features, with a bias.
        loader: batches (inputs, targets), with targets (N,) in 0..C-1; every class must occur.
        classifier: the last layer or its name, if it is not found; see ``ISDALoss.attach``.
        verbose: print log-likelihood and error before and after.
        **settings: of `ISDAClassifier`, for example ``lambda_0``, ``C``, ``covariance`` or ``n_jobs``.

    Returns:
        Figures before and after, held-out ones by cross-validation, and the values that were chosen. The settings are
        chosen by the same folds, so that the held-out figures are slightly optimistic.

    Raises:
        ValueError: no or several classifiers, a classifier without a bias or with adapters, pixel outputs, classes
            without a sample, NaN or infinite features; the model is unchanged then.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).double()
        >>> result = refit(model, zip(images[::9].split(50), labels[::9].split(50)), verbose=False)
        >>> result.before.error > 80, result.held_out.error < 15
        (True, True)
        >>> bool((model(images[1::9]).argmax(1) == labels[1::9]).double().mean() > 0.85)
        True
    """
    for name in _STOCHASTIC:
        if name in settings:
            raise ValueError(f"refit solves the convex problem of labelled samples and does not support {name}=")
    estimator = ISDAClassifier(**settings)
    head = find_classifier(model, classifier)
    current_weight, current_bias = _parameters(head)
    features, targets = _collect(model, head, loader)
    rows, labels = features.numpy(), targets.numpy()
    _check_samples(rows, labels, len(current_weight))
    seed = seed_of(estimator)
    folds = stratified_folds(estimator.cv, rows, labels, seed)
    estimator.set_params(random_state=seed, cv=folds or 2)
    estimator.fit(rows, labels)
    weight, bias = _two_rows(estimator.coef_, estimator.intercept_)
    # Converted on the CPU: not every device has float64.
    new_weight = torch.from_numpy(weight).to(current_weight.dtype).view(current_weight.shape)
    new_bias = torch.from_numpy(bias).to(current_bias.dtype)
    if not (new_weight.isfinite().all() and new_bias.isfinite().all()):
        raise ValueError(
            f"the new weights must be finite in {current_weight.dtype}, got an overflow; convert the model to float32"
        )
    old_weight, old_bias = (part.detach().cpu().double().numpy() for part in (current_weight, current_bias))
    held_out = None
    if folds:
        factors = class_factors(estimator.class_weight, estimator.classes_, labels, np.ones(len(labels)))
        data = EncodedData(rows, labels, np.ones(len(labels)), factors, len(weight))
        logits = np.concatenate(cross_validated_logits(estimator, data, folds))
        held_out = _figures(logits, labels[np.concatenate([index for _, index in folds])])
    result = RefitResult(
        before=_figures(rows @ old_weight.reshape(len(weight), -1).T + old_bias, labels),
        after=_figures(rows @ weight.T + bias, labels),
        held_out=held_out,
        lambda_0=estimator.lambda_0_,
        C=estimator.C_,
        scale=estimator.scale_,
        standardize=estimator.standardize_,
        estimator=estimator,
    )
    with torch.no_grad():
        current_weight.copy_(new_weight)
        current_bias.copy_(new_bias)
    if verbose:
        print(result)
    return result


def _parameters(head: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """Weight and bias of a classifier; ValueError if they cannot be replaced."""
    weight, bias = head._parameters.get("weight"), head._parameters.get("bias")
    if not isinstance(head, (nn.Linear, nn.Conv2d)) or weight is None or hasattr(weight, "full_tensor"):
        raise ValueError(
            "the classifier must hold its weight as a plain parameter, got one that adapters, a parametrisation or "
            f"sharding compute ({type(head).__name__}); merge, remove or gather them first"
        )
    if bias is None:
        raise ValueError(
            "the classifier must have a bias, got bias=False; replace it by a layer with bias=True before refit"
        )
    if len(weight) < 2:
        raise ValueError("the classifier must have an output for each of at least two classes, got 1 output")
    if isinstance(head, nn.Conv2d) and head.kernel_size != (1, 1):
        raise ValueError(f"refit does not support pixel classifiers, got a convolution of {head.kernel_size} pixels")
    return weight, bias


def _collect(model: nn.Module, head: nn.Module, loader: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Inputs (N, A) of the classifier in float64 and targets (N,), on the CPU."""
    calls: list[tuple[Tensor, Tensor]] = []
    features: list[Tensor] = []
    targets: list[Tensor] = []
    device = next(model.parameters()).device

    def record(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls.append((inputs[0], output))

    handle = head.register_forward_hook(record)
    try:
        with in_eval_mode(model), torch.no_grad():
            for batch in loader:
                if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                    raise ValueError(f"the loader must give batches (inputs, targets), got {type(batch).__name__}")
                images, labels = batch
                calls.clear()
                outputs = model(images.to(device) if isinstance(images, Tensor) else images)
                if len(calls) != 1:
                    raise ValueError(
                        f"the model must call its classifier once per batch, got {len(calls)} calls; pass the layer "
                        "that gives the logits as classifier="
                    )
                rows = _rows(calls[0][0], labels)
                _check_outputs(outputs, calls[0][1])
                features.append(rows.detach().cpu().double())
                targets.append(labels.detach().cpu().long())
    finally:
        handle.remove()
    if not features:
        raise ValueError("the loader must give at least one batch, got none; an iterator may have been used up already")
    return torch.cat(features), torch.cat(targets)


def _rows(inputs: Tensor, labels: Any) -> Tensor:
    """(N, A) inputs of the classifier, one for each label."""
    if inputs.dim() == 4 and inputs.shape[2:] == (1, 1):
        inputs = inputs.flatten(1)
    if inputs.dim() != 2:
        raise ValueError(
            f"refit supports classifiers of whole samples, not of pixels or tokens: their inputs must be (N, A), got "
            f"{tuple(inputs.shape)}"
        )
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.shape != inputs.shape[:1]:
        shape = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"targets must be class indices ({len(inputs)},), one for each sample, got {shape}")
    return inputs


def _check_outputs(outputs: Any, logits: Tensor) -> None:
    """Refuse a model whose probabilities are not those of the classifier's outputs."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits", outputs.get("out"))
    outputs = getattr(outputs, "logits", outputs[0] if isinstance(outputs, (tuple, list)) else outputs)
    if not isinstance(outputs, Tensor):
        return
    logits, outputs = logits.flatten(1).float(), outputs.flatten(1).float()
    same = logits.shape == outputs.shape and torch.allclose(
        torch.log_softmax(outputs, 1), torch.log_softmax(logits, 1), rtol=1e-2, atol=1e-2, equal_nan=True
    )
    if not same:
        raise ValueError(
            "the output of the model must be that of its classifier, got another: it scales, averages or pools what "
            "the classifier computes, which refit does not support; pass the layer that gives the logits as classifier="
        )


def _check_samples(rows: NDArray[Any], labels: NDArray[Any], classes: int) -> None:
    broken = int((~np.isfinite(rows)).any(1).sum())
    if broken:
        raise ValueError(f"features must be finite, got NaN or infinite features of {broken} of {len(rows)} samples")
    if labels.min() < 0 or labels.max() >= classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise ValueError(f"targets must be in 0..{classes - 1}, one for each output of the classifier, got {wrong}")
    missing = np.setdiff1d(np.arange(classes), labels).tolist()
    if missing:
        more = f" and {len(missing) - _SHOWN_CLASSES} more" if len(missing) > _SHOWN_CLASSES else ""
        raise ValueError(
            f"the loader must hold samples of all {classes} classes, got none of {missing[:_SHOWN_CLASSES]}{more}; "
            "without samples their weights cannot be fitted"
        )


def _two_rows(weight: NDArray[Any], bias: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """A row for each class; with two classes the single row is the difference of two."""
    if len(weight) > 1:
        return weight, bias
    return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2


def _figures(logits: NDArray[Any], labels: NDArray[Any]) -> RefitFigures:
    likelihood = log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()
    return RefitFigures(float(likelihood), 100 * float((logits.argmax(1) != labels).mean()))
