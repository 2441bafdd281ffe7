"""Fit an ISDAClassifier: the convex problem to its optimum, other problems by mini-batches.

Contains the stratified folds of cross-validation and the margin offsets for imbalanced classes, which are part of the
logits in training only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_random_state
from torch import Tensor, nn

from isda._utils.choices import check_choice
from isda.estimator.convex import ConvexProblem
from isda.estimator.data import EncodedData, FitData, Scaler, Standardize, print_progress
from isda.estimator.stochastic import LabelledRows, StochasticFit, StochasticTrainer, classifier_of, make_network
from isda.losses.long_tail import LDAMMargins, LogitAdjustment, Offset, OffsetTable

if TYPE_CHECKING:
    from isda.estimator.classifier import ISDAClassifier


def stratified_folds(
    cv: Any, inputs: NDArray[Any], labels: NDArray[Any], seed: int
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Indices of training and held-out rows, for every fold.

    A number of folds is lowered to the size of the largest class. A class with fewer rows than folds is held out in
    as many folds as it has rows; the only row of a class is never held out.

    Args:
        cv: number of folds, a splitter of scikit-learn, or the splits themselves.
        inputs: (N, A) rows.
        labels: (N,) labels.
        seed: of the assignment of rows to folds.

    Example:
        >>> for train, held_out in stratified_folds(5, np.zeros((5, 1)), np.array([0, 0, 1, 1, 2]), seed=0):
        ...     print(np.array([0, 0, 1, 1, 2])[train], np.array([0, 0, 1, 1, 2])[held_out])
        [0 1 2] [0 1]
        [0 1 2] [0 1]
    """
    check_folds(cv)
    if isinstance(cv, int | np.integer):
        return list(_assign_folds(int(cv), labels, seed))
    return [(np.asarray(a), np.asarray(b)) for a, b in check_cv(cv, labels, classifier=True).split(inputs, labels)]


def check_folds(cv: Any) -> None:
    """Raise ValueError unless ``cv`` is a number of folds, a splitter, or splits."""
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        if cv < 2:
            raise ValueError(f"cv must be at least 2 folds, got {cv}")
    elif isinstance(cv, str) or not (hasattr(cv, "split") or isinstance(cv, Iterable)):
        raise ValueError(f"cv must be a number of folds, a splitter or a list of splits, got {cv!r}")


def _assign_folds(folds: int, labels: NDArray[Any], seed: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    order = np.random.default_rng(seed).permutation(len(labels))
    _, encoded, sizes = np.unique(labels[order], return_inverse=True, return_counts=True)
    folds = min(folds, int(sizes.max()))
    fold, first = np.full(len(labels), -1), 0
    for index, size in enumerate(sizes):
        if size > 1:
            # Continue where the last class stopped, so that the folds are of about equal size.
            fold[order[encoded == index]] = (first + np.arange(size)) % folds
            first += size
    for number in range(folds):
        if (fold == number).any():
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


_MAKERS: dict[str, Callable[[Tensor], Offset]] = {"logit-adjustment": LogitAdjustment, "ldam": LDAMMargins}


def check_offset(offset: Any) -> None:
    """Raise ValueError unless ``offset`` is None, a name, or a provider."""
    if not (offset is None or isinstance(offset, Offset)):
        check_choice("offset", offset, tuple(_MAKERS))


def offset_table(offset: str | Offset | None, counts: NDArray[Any]) -> Tensor | None:
    """(C, C) o_yj, or None without an offset.

    Example:
        >>> offset_table("logit-adjustment", np.array([90, 10])).exp()
        tensor([[1.0000, 0.1111],
                [9.0000, 1.0000]], dtype=torch.float64)
    """
    if offset is None:
        return None
    sizes = torch.from_numpy(counts).double()
    provider = _MAKERS[offset](sizes) if isinstance(offset, str) else offset
    if provider.num_classes != len(sizes):
        raise ValueError(f"offset must be for {len(sizes)} classes, got one for {provider.num_classes}")
    with torch.no_grad():
        return provider.rows(torch.arange(len(sizes))).detach().cpu().double()


STRENGTHS = (0.0, 0.5, 2.0)
"""The values that "auto" tries with hidden layers."""
_STRENGTH, _C = 0.5, 1.0
"""Defaults of "auto" without held-out rows."""
_UNSCALED = 1.0
"""The scale of logits that are trained by mini-batches."""


def fit_convex(
    model: ISDAClassifier,
    encoded: EncodedData,
    scalers: Mapping[Standardize, Scaler],
    known: NDArray[np.bool_],
    data: FitData,
) -> None:
    """Set coef_, intercept_ and the attributes about the fit; of several scalers the folds choose one."""
    folds: list[tuple[NDArray[Any], NDArray[Any]]] = []
    if "auto" in (model.lambda_0, model.C):
        if isinstance(model.cv, int):
            folds = stratified_folds(model.cv, encoded.inputs, encoded.targets, seed_of(model))
        else:  # splits of all rows, as indices of the known ones
            position = np.cumsum(known) - 1
            pairs = stratified_folds(model.cv, data.rows, data.labels, seed_of(model))
            folds = [(position[a[known[a]]], position[b[known[b]]]) for a, b in pairs]
    problem, standardize, cv_results, start = _choose(model, encoded, scalers, folds, model.scale)
    scaler = scalers[standardize]
    if model._warm and hasattr(model, "coef_"):
        start = np.concatenate([model.coef_, model.intercept_[:, None]], 1) / model.scale_
    if start is not None:
        start = scaler.from_original(start[:, :-1], start[:, -1])
    fit = problem.fit(encoded.scaled(scaler), offset=_offset(model, encoded), start=start)
    _forget_network(model)
    model.scaler_, model.standardize_ = scaler, standardize
    model.coef_, model.intercept_ = scaler.to_original(fit.weight, fit.intercept)
    model.lambda_0_, model.C_, model.scale_, model.cv_results_ = fit.strength, fit.C, fit.scale, cv_results
    model.n_iter_, model.gradient_norm_ = np.array([fit.n_iter]), fit.gradient_norm


def cross_validated_logits(
    model: ISDAClassifier,
    encoded: EncodedData,
    folds: list[tuple[NDArray[Any], NDArray[Any]]],
) -> list[NDArray[Any]]:
    """(M, C) logits of the held-out rows of each fold, with the settings that a fitted linear classifier has used."""
    problem = _problem(model, model.lambda_0_, model.C_, model.scale_)
    return problem.held_out_logits(
        encoded, model.standardize_, model.scaler_, folds, offset=_offset(model, encoded), n_jobs=model.n_jobs
    )


def _problem(model: ISDAClassifier, strength: float | str, C: float | str, scale: float | str) -> ConvexProblem:
    return ConvexProblem(
        strength=None if strength == "auto" else float(strength),
        C=None if C == "auto" else float(C),
        scale=None if scale == "auto" else float(scale),
        covariance=model.covariance,
        bound=model.bound,
        tol=model.tol,
        max_iter=model.max_iter,
        report=print_progress if model.verbose else None,
    )


def _choose(
    model: ISDAClassifier,
    encoded: EncodedData,
    scalers: Mapping[Standardize, Scaler],
    folds: list[tuple[NDArray[Any], NDArray[Any]]],
    scale: float | str,
) -> tuple[ConvexProblem, Standardize, dict[str, Any] | None, NDArray[Any] | None]:
    """The problem with what the folds have chosen, the scaling, cv_results_ and parameters to start from.

    Without folds the first scaling.
    """
    problem = _problem(model, model.lambda_0, model.C, scale)
    if not folds:
        return problem, next(iter(scalers)), None, None
    chosen = problem.choose(encoded, scalers, folds, offset=_offset(model, encoded), n_jobs=model.n_jobs)
    problem = replace(problem, strength=chosen.strength, C=chosen.C, scale=chosen.scale)
    return problem, chosen.standardize, chosen.results, chosen.start


def _offset(model: ISDAClassifier, scaled: EncodedData) -> Tensor | None:
    return offset_table(model.offset, np.bincount(scaled.targets, scaled.counts, minlength=scaled.num_classes))


def fit_stochastic(model: ISDAClassifier, scaled: EncodedData, unlabelled: NDArray[Any]) -> None:
    """Train a network, or a linear classifier with unlabelled rows, from the convex optimum of the labelled ones."""
    seed = seed_of(model)
    rows, held_out, train = _hold_out(model, scaled, seed)
    others, offset = torch.from_numpy(unlabelled.astype(np.float32)), _offset(model, scaled)
    strengths: tuple[float, ...] = STRENGTHS if model.lambda_0 == "auto" else (float(model.lambda_0),)
    penalty, weights, cv_results = _C if model.C == "auto" else float(model.C), None, None
    if not model.hidden:
        part = EncodedData(scaled.inputs[train], scaled.targets[train], scaled.counts[train], *scaled[3:])
        choosing = "auto" in (model.lambda_0, model.C)
        folds = stratified_folds(5, part.inputs, part.targets, seed) if choosing else []
        # Scaled already; a fold scales anew by its own training rows.
        unscaled = {model.standardize_: Scaler.of(part.inputs, part.counts, False)}
        problem, _, cv_results, start = _choose(model, part, unscaled, folds, _UNSCALED)
        fit = problem.fit(part, offset=_offset(model, part), start=start)
        strengths, penalty = (fit.strength,), fit.C
        weights = fit.weight, fit.intercept
    elif model.lambda_0 == "auto" and held_out is None:
        strengths = (_STRENGTH,)
    fits: list[StochasticFit] = []
    for strength in strengths:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = make_network(scaled.inputs.shape[1], tuple(model.hidden), scaled.num_classes)
            if model._warm and hasattr(model, "network_"):
                network.load_state_dict(model.network_.state_dict())
            elif weights is not None:
                _set_classifier(network, *weights)
            trainer = _trainer(model, strength, penalty, offset)
            fits.append(trainer.fit(network, rows, others, held_out, seed))
    scores = [fit.validation_curve[fit.best_epoch] if held_out else 0.0 for fit in fits]
    index = scores.index(max(scores))
    if model.hidden and len(strengths) > 1:
        cv_results = {
            "param_lambda_0": np.array(strengths),
            "param_C": np.full(len(strengths), penalty),
            "params": [{"lambda_0": strength, "C": penalty} for strength in strengths],
            "mean_test_score": np.array(scores),
            "best_index": index,
        }
    best = fits[index]
    model.lambda_0_, model.C_, model.scale_, model.cv_results_ = strengths[index], penalty, _UNSCALED, cv_results
    _keep_network(model, best.network)
    model.loss_curve_, model.validation_curve_ = best.loss_curve, best.validation_curve
    model.n_iter_, model.gradient_norm_ = np.array([len(best.loss_curve)]), None


def fit_partially(model: ISDAClassifier, scaled: EncodedData, unlabelled: NDArray[Any]) -> None:
    """One pass over these rows; the network, its statistics and those of AdamW continue from the last call."""
    strength = getattr(model, "lambda_0_", _STRENGTH) if model.lambda_0 == "auto" else float(model.lambda_0)
    penalty = getattr(model, "C_", _C) if model.C == "auto" else float(model.C)
    if isinstance(model.offset, str):
        raise ValueError(
            f"offset must be None or a provider with the sizes of the classes for partial_fit, got {model.offset!r}"
        )
    trainer, seed = _trainer(model, strength, penalty, _offset(model, scaled)), seed_of(model)
    if not hasattr(model, "_stream"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = make_network(scaled.inputs.shape[1], tuple(model.hidden), scaled.num_classes)
        if hasattr(model, "network_"):
            network.load_state_dict(model.network_.state_dict())
        elif hasattr(model, "coef_"):
            parameters = model.scaler_.from_original(model.coef_, model.intercept_) / model.scale_
            _set_classifier(network, parameters[:, :-1], parameters[:, -1])
        model._stream = (network, trainer.criterion(network, None), trainer.optimiser(network), [0])
        model.loss_curve_, model.n_iter_, model.scale_ = [], np.array([0]), getattr(model, "scale_", _UNSCALED)
    network, criterion, optimiser, calls = model._stream
    order = torch.Generator().manual_seed(seed + calls[0])
    calls[0] += 1
    if len(scaled.inputs):
        others = torch.from_numpy(unlabelled.astype(np.float32))
        loss = trainer.train_epoch(network, criterion, optimiser, _labelled_rows(scaled), others, order)
        model.loss_curve_.append(loss)
    model.n_iter_ = model.n_iter_ + 1
    model.lambda_0_, model.C_, model.cv_results_, model.gradient_norm_ = strength, penalty, None, None
    _keep_network(model, network, stream=True)


@torch.no_grad()
def network_scores(network: nn.Sequential, rows: NDArray[Any]) -> NDArray[Any]:
    """(N, C) logits."""
    return np.asarray(network(torch.from_numpy(rows.astype(np.float32))))


def _hold_out(
    model: ISDAClassifier, scaled: EncodedData, seed: int
) -> tuple[LabelledRows, LabelledRows | None, NDArray[Any]]:
    """Training rows, held-out rows for early stopping, and the indices of the former."""
    rows, pairs = _labelled_rows(scaled), []
    if model.validation_fraction:
        pairs = stratified_folds(max(2, round(1 / model.validation_fraction)), scaled.inputs, scaled.targets, seed)
    if not pairs:
        return rows, None, np.arange(len(scaled.targets))
    train, index = pairs[0]
    held_out = LabelledRows(*(t[index] for t in rows))
    if model.offset is not None:
        sizes = torch.zeros(scaled.num_classes).index_add_(0, rows.targets, rows.weights)
        held_out = held_out._replace(weights=held_out.weights / sizes[held_out.targets])
    return LabelledRows(*(t[train] for t in rows)), held_out, train


def _labelled_rows(scaled: EncodedData) -> LabelledRows:
    weights = scaled.counts * scaled.class_weights[scaled.targets]
    return LabelledRows(
        torch.from_numpy(scaled.inputs.astype(np.float32)),
        torch.from_numpy(scaled.targets.astype(np.int64)),
        torch.from_numpy(weights.astype(np.float32)),
    )


def _trainer(model: ISDAClassifier, strength: float, penalty: float, offset: Tensor | None) -> StochasticTrainer:
    return StochasticTrainer(model, strength, penalty, None if offset is None else OffsetTable(offset))


@torch.no_grad()
def _set_classifier(network: nn.Sequential, weight: NDArray[Any], intercept: NDArray[Any]) -> None:
    """Set the last layer to the convex optimum; with two classes its single row is the difference of two."""
    if len(weight) == 1:
        weight, intercept = np.concatenate([-weight, weight]) / 2, np.concatenate([-intercept, intercept]) / 2
    head = classifier_of(network)
    head.weight.copy_(torch.from_numpy(weight))
    head.bias.copy_(torch.from_numpy(intercept))


def _keep_network(model: ISDAClassifier, network: nn.Sequential, *, stream: bool = False) -> None:
    """Set network_, and coef_ and intercept_ if it is linear."""
    if not stream:
        _forget_network(model)
    model.network_ = network
    if model.hidden:
        for name in ("coef_", "intercept_"):
            model.__dict__.pop(name, None)
        return
    head = classifier_of(network)
    weight, intercept = head.weight.detach().double().numpy(), head.bias.detach().double().numpy()
    if len(weight) == 2:
        weight, intercept = weight[1:] - weight[:1], intercept[1:] - intercept[:1]
    model.coef_, model.intercept_ = model.scaler_.to_original(model.scale_ * weight, model.scale_ * intercept)


def _forget_network(model: ISDAClassifier) -> None:
    for name in ("network_", "loss_curve_", "validation_curve_", "_stream"):
        model.__dict__.pop(name, None)


def seed_of(model: ISDAClassifier) -> int:
    """The seed of folds, weights and orders: 0 without a random_state."""
    if model.random_state is None:
        return 0
    return int(check_random_state(model.random_state).randint(2**31 - 1))
