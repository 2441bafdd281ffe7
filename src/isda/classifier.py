"""ISDAClassifier: logistic regression on infinitely many augmented rows, for embeddings and tables with few labels.

For fixed rows the published bound (Prop. 1) is convex in the weights W and intercepts b. With weights u_i of the rows,
whose sum is 1 as they are normalised, and n, their sum before, the objective is

    sum_i u_i log sum_j exp(z_ij - z_iy + lambda/2 (w_j - w_y)' Sigma_y (w_j - w_y)) + |W|^2 / (2 C n).

Rows are rotated into the eigenbasis of the covariance within classes, where it is a diagonal: a step costs as much as
one of logistic regression. The rotation of a fold serves every strength and penalty.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.sparse import issparse
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

__all__ = ["ISDAClassifier"]

Matrix = NDArray[np.float64]
Labels = NDArray[np.intp]
Parameters = tuple[Matrix, Matrix]
"""Weights (K, D) and intercepts (K,)."""
Point = tuple[float, float]
"""Exponents of ten of lambda, -inf for lambda = 0, and of C."""

COVARIANCES = ("within", "full", "diagonal")
SCALINGS = ("auto", "columns", "all", True, False)
MAX_STRENGTH, MIN_C, MAX_C = 1e9, 1e-12, 1e12
MAX_DENSE_BYTES = 2**31
"""Of sparse rows when they are made dense."""
MAX_VALUE = 1e150
"""Larger values have squares that overflow."""
OFF = -math.inf
STRENGTH_LIMITS, C_LIMITS = (-2.0, 4.0), (-6.0, 5.0)
"""Exponents of ten between which the search moves."""
MIN_GAIN = 1e-4
"""In nats per row: smaller gains of a step are ignored."""
REACH = 0.05
"""A scaling whose score is this part worse than the best one is not searched further."""
HELD_OUT_ROWS = 1000
"""So many held-out rows decide: further folds are left out."""
FOLD_TOL, FOLD_STEPS = 3e-3, 200
STEPS_PER_ROUND = 50
"""After so many steps the curvature is measured again."""
DEFAULT_STRENGTH, DEFAULT_C = 0.5, 1.0
"""Of "auto" where no row can be held out."""


class ISDAClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier trained with implicit semantic data augmentation.

    The expected cross-entropy over all augmented rows is bounded in closed form (Prop. 1) and minimised to its one
    optimum. ``lambda_0=0`` is LogisticRegression(C=C).

    Args:
        lambda_0: strength of the augmentation; 0 is logistic regression, "auto" is chosen by cross-validation.
        C: inverse of the L2 penalty as in LogisticRegression, or "auto".
        covariance: "within" (pooled within classes), or each class's own, "full" or "diagonal".
        standardize: "columns" or True: each feature to standard deviation 1; "all": one factor for all features, for
            pixels and embeddings; False: none; "auto": the better of the first two where lambda_0 or C is chosen,
            otherwise "columns". ``coef_`` and ``intercept_`` are for the features as given.
        class_weight: None, "balanced" or a dict: factors of the losses, not of the covariances.
        cv: number of folds, a splitter or a list of splits. Of a number of folds only as many are used as hold out
            1,000 rows.
        n_jobs: threads that solve folds.
        tol: largest entry of the gradient at the end, in units of the root of the curvature.
        max_iter: steps at most.
        random_state: of the folds.

    Attributes:
        classes_: (K,) the labels.
        coef_: (K, A), or (1, A) for two classes.
        intercept_: (K,) or (1,).
        lambda_0_, C_, standardize_: the values used.
        scale_: factor on the logits, part of ``coef_`` and ``intercept_``. Augmentation shrinks logits; the factor is
            chosen by the held-out rows, and is 1 where none are held out.
        cv_results_: the values tried, with their mean held-out log-likelihoods; None if nothing was chosen.
        n_iter_: (1,) steps of the last fit.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ISDAClassifier().fit(X, y)
        >>> model.coef_.shape, float(model.score(X, y)) > 0.95
        ((3, 4), True)
    """

    def __init__(
        self,
        lambda_0: float | str = "auto",
        C: float | str = "auto",
        *,
        covariance: str = "within",
        standardize: str | bool = "auto",
        class_weight: Any = None,
        cv: Any = 5,
        n_jobs: int | None = None,
        tol: float = 1e-9,
        max_iter: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.lambda_0 = lambda_0
        self.C = C
        self.covariance = covariance
        self.standardize = standardize
        self.class_weight = class_weight
        self.cv = cv
        self.n_jobs = n_jobs
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ISDAClassifier:
        """Fit to rows X (n_samples, n_features) with labels y (n_samples,).

        ``sample_weight`` (n_samples,) is how often each row counts, in the loss and in the covariances.
        """
        fitted = copy(self)
        fitted._fit(X, y, sample_weight)
        # At once: a fit that is refused or interrupted leaves the model as it was.
        self.__dict__ = fitted.__dict__
        return self

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        check_settings(self)
        rows, given = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr")
        rows = dense(rows)
        check_classification_targets(given)
        counts = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        known = counts > 0
        classes, labels = np.unique(given[known], return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y must hold at least two classes in rows of positive weight, got {len(classes)} class: "
                f"{classes.tolist()}"
            )
        folds = self._folds(rows, given, known, labels) if "auto" in (self.lambda_0, self.C) else []
        factors = compute_class_weight(self.class_weight, classes=classes, y=given[known])
        data = Data(rows[known], labels, counts[known], np.asarray(factors, np.float64), self.covariance)
        scalings = ("columns", "all") if self.standardize == "auto" else (self.standardize,)
        strength = DEFAULT_STRENGTH if self.lambda_0 == "auto" else float(self.lambda_0)
        C = DEFAULT_C if self.C == "auto" else float(self.C)
        scaling, scale, self.cv_results_ = scalings[0], 1.0, None
        if folds:
            search = Search(data, folds, self.n_jobs)
            best = search.best(
                scalings,
                strength=None if self.lambda_0 == "auto" else strength,
                C=None if self.C == "auto" else C,
            )
            scaling, strength, C = best.scaling, best.strength, best.C
            scale = search.solved(best.scaling, best.point, best, tol=self.tol, max_iter=self.max_iter).scale
            self.cv_results_ = search.results(best)
        problem = Problem(data, scaling)
        solution, steps = problem.solve(strength, C, tol=self.tol, max_iter=self.max_iter)
        if steps >= self.max_iter:
            warnings.warn(
                f"the optimum was not reached in {steps} steps; raise max_iter or tol, or lower C",
                ConvergenceWarning,
                stacklevel=3,
            )
        coefficients, intercepts = problem.for_columns(*solution)
        if len(classes) == 2:
            coefficients, intercepts = np.diff(coefficients, axis=0), np.diff(intercepts)
        self.classes_, self.coef_, self.intercept_ = classes, scale * coefficients, scale * intercepts
        self.lambda_0_, self.C_, self.scale_, self.standardize_ = strength, C, scale, scaling
        self.n_iter_ = np.array([max(1, steps)], dtype=np.int32)

    def _folds(self, rows: Matrix, given: Any, known: NDArray[np.bool_], labels: Labels) -> list[tuple[Any, Any]]:
        """Masks of training and held-out rows among those that count, fold by fold."""
        if isinstance(self.cv, Integral):
            seed = 0 if self.random_state is None else check_random_state(self.random_state).randint(2**31 - 1)
            return stratified_folds(int(self.cv), labels, seed)
        masks = []
        for pair in check_cv(self.cv, given, classifier=True).split(rows, given):
            chosen = np.zeros((2, len(rows)), dtype=bool)
            for mask, indices in zip(chosen, pair, strict=True):
                mask[indices] = True
            masks.append((chosen[0][known], chosen[1][known]))
        return masks

    def decision_function(self, X: ArrayLike) -> Matrix:
        """Logits (n_samples, n_classes); their difference (n_samples,) for two classes."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, accept_sparse="csr", reset=False)
        scores = np.asarray(rows @ self.coef_.T + self.intercept_)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_log_proba(self, X: ArrayLike) -> Matrix:
        """Logarithms of the class probabilities (n_samples, n_classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        return np.asarray(log_softmax(scores, axis=1))

    def predict_proba(self, X: ArrayLike) -> Matrix:
        """Class probabilities (n_samples, n_classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (n_samples,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def to_logistic_regression(self) -> LogisticRegression:
        """A fitted LogisticRegression with the same probabilities, for tools that know that class (skl2onnx).

        Example:
            >>> from sklearn.datasets import load_iris
            >>> X, y = load_iris(return_X_y=True)
            >>> model = ISDAClassifier(1.0, C=1.0).fit(X, y)
            >>> bool(np.allclose(model.to_logistic_regression().predict_proba(X), model.predict_proba(X)))
            True
        """
        check_is_fitted(self)
        plain = LogisticRegression(C=self.C_, max_iter=self.max_iter, tol=self.tol)
        for name in ("classes_", "coef_", "intercept_", "n_iter_", "n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(plain, name, copy(getattr(self, name)))
        return plain

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def check_settings(model: ISDAClassifier) -> None:
    """Raise ValueError for the first setting that is wrong."""
    check_number("lambda_0", model.lambda_0, 0, MAX_STRENGTH, auto=True)
    check_number("C", model.C, MIN_C, MAX_C, auto=True)
    check_number("tol", model.tol, 1e-15, 1)
    check_number("max_iter", model.max_iter, 1, 10**9, kind=Integral)
    if isinstance(model.cv, Integral):
        check_number("cv", model.cv, 2, 10**9, kind=Integral)
    elif isinstance(model.cv, str) or not (hasattr(model.cv, "split") or isinstance(model.cv, Iterable)):
        raise ValueError(f"cv must be a number of folds, a splitter or a list of splits, got {model.cv!r}")
    for name, known in (("covariance", COVARIANCES), ("standardize", SCALINGS)):
        if not any(getattr(model, name) is choice or getattr(model, name) == choice for choice in known):
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {getattr(model, name)!r}")


def check_number(name: str, value: Any, low: float, high: float, *, auto: bool = False, kind: Any = Real) -> None:
    """Raise ValueError unless a setting is a number between two limits, or "auto"."""
    if auto and isinstance(value, str) and value == "auto":
        return
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        what = "an integer" if kind is Integral else "a number"
        raise ValueError(f"{name} must be {what} from {low:g} to {high:g}{' or auto' * auto}, got {value!r}")


def dense(rows: Any) -> Matrix:
    """Rows as an array; ValueError for sparse rows that would be too large, and for values whose squares overflow."""
    if issparse(rows):
        size = 8 * math.prod(rows.shape)
        if size > MAX_DENSE_BYTES:
            raise ValueError(
                f"sparse X must take at most {MAX_DENSE_BYTES / 1e9:.1f} GB as an array, got {size / 1e9:.1f} GB; "
                "reduce its columns first (TruncatedSVD)"
            )
        rows = rows.toarray()
    largest = max(float(rows.max()), -float(rows.min()))
    if largest > MAX_VALUE:
        raise ValueError(f"X must hold values of magnitude at most {MAX_VALUE:g}, got {largest:.2g}")
    return np.asarray(rows)


def stratified_folds(folds: int, labels: Labels, seed: int) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Masks of training and held-out rows.

    A class with fewer rows than folds is held out in as many folds as it has rows; its only row never is.

    Example:
        >>> for train, held_out in stratified_folds(5, np.array([0, 0, 1, 1, 2]), seed=0):
        ...     print(train.sum(), held_out.sum())
        3 2
        3 2
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    sizes = np.bincount(labels)
    folds = min(folds, int(sizes.max()))
    fold = np.full(len(labels), -1)
    first = 0
    for label, size in enumerate(sizes):
        if size > 1:
            # Goes on where the last class ended: folds are of about equal size.
            fold[order[labels[order] == label]] = (first + np.arange(size)) % folds
            first += size
    enough = math.ceil(HELD_OUT_ROWS * folds / len(labels))
    return [(fold != number, fold == number) for number in range(min(folds, enough)) if (fold == number).any()]


class Data(NamedTuple):
    """Rows, labels, how often each row counts, factors of the losses of the classes, and the kind of covariance."""

    rows: Matrix  # (N, A)
    labels: Labels  # (N,)
    counts: Matrix  # (N,)
    factors: Matrix  # (K,)
    covariance: str

    def part(self, mask: NDArray[np.bool_]) -> Data:
        """Some of the rows."""
        return self._replace(rows=self.rows[mask], labels=self.labels[mask], counts=self.counts[mask])


class Problem:
    """The convex problem of some rows, in coordinates in which the covariance within classes is a diagonal.

    Args:
        data: the rows.
        scaling: "columns", "all" or False.
        spread: (A,) standard deviations in a larger sample: a column that hardly varies here, but does there, is left
            out, because other rows would be far away.
    """

    def __init__(self, data: Data, scaling: str | bool, spread: Matrix | float = 0.0) -> None:
        self.labels, self.classes = data.labels, len(data.factors)
        self.own = data.labels, np.arange(len(data.labels))
        self.onehot = np.zeros((self.classes, len(data.labels)))
        self.onehot[self.own] = 1
        losses = data.counts * data.factors[data.labels]
        self.total = float(losses.sum())
        self.weights = losses / self.total
        sizes = self.onehot @ data.counts
        self.means = self.onehot * data.counts / np.where(sizes > 0, sizes, 1)[:, None]
        """(K, N) times values (N, ...) is their mean in each class."""
        share = data.counts / data.counts.sum()
        self.centre, self.spread = self._standards(data.rows, share, scaling, spread)
        rows = (data.rows - self.centre) / self.spread
        apart = rows - (self.means @ rows)[data.labels]
        self.basis: Matrix | None = None
        self.variances: Matrix | None = None
        if data.covariance == "diagonal":
            self.variances = self.means @ apart**2
            self.pooled = share @ apart**2
        else:
            if rows.shape[1] > len(rows):
                # No weight outside of the span of the rows is of use.
                self.basis = np.linalg.qr(rows.T)[0]
                rows, apart = rows @ self.basis, apart @ self.basis
            pooled, rotation = np.linalg.eigh((apart.T * share) @ apart)
            self.pooled = pooled.clip(0)
            self.basis = rotation if self.basis is None else self.basis @ rotation
            rows = rows @ rotation
            if data.covariance == "within":
                self.variances = np.broadcast_to(self.pooled, (self.classes, len(self.pooled)))
        self.inputs = np.ascontiguousarray(rows.T)

    @staticmethod
    def _standards(rows: Matrix, share: Matrix, scaling: str | bool, spread: Matrix | float) -> Parameters:
        """Centre and size of each column; the size of a column that takes no part is infinite."""
        centre = share @ rows
        own = np.sqrt(share @ (rows - centre) ** 2)
        varies = own > np.maximum(1e-3 * spread, 1e-14 * np.abs(centre))
        size = np.ones_like(own)
        if scaling == "all" and varies.any():
            size = np.full_like(own, math.sqrt(np.square(own[varies]).mean()))
        elif scaling in ("columns", True):
            size = own
        return centre, np.where(varies, size, np.inf)

    def transform(self, rows: Matrix) -> Matrix:
        """(D, M) further rows (M, A) in these coordinates."""
        scaled = (rows - self.centre) / self.spread
        return (scaled if self.basis is None else scaled @ self.basis).T

    def for_columns(self, weights: Matrix, intercepts: Matrix) -> Parameters:
        """Weights (K, A) and intercepts for rows as given."""
        turned = weights if self.basis is None else weights @ self.basis.T
        turned = turned / self.spread
        return turned, intercepts - turned @ self.centre

    def margins(self, weights: Matrix, logits: Matrix) -> tuple[Matrix, Callable[[Matrix], Parameters]]:
        """R[c, j] = (w_j - w_c)' Sigma_c (w_j - w_c), and a function of T for the gradient of sum T[c, j] R[c, j].

        The function returns the gradients by weights and by logits.
        """
        if self.variances is not None:
            variances = self.variances
            product = variances * weights
            table = variances @ (weights**2).T - 2 * product @ weights.T + (product * weights).sum(1)[:, None]

            def by_weights(of: Matrix) -> Parameters:
                toward = (of.T @ variances) * weights - of.T @ product
                toward += product * of.sum(1)[:, None] - variances * (of @ weights)
                return 2 * toward, np.zeros(1)

            return table, by_weights
        # A class's own covariance: the variance of the margin over the rows of the class.
        apart = logits - logits[self.own]
        apart -= (apart @ self.means.T)[:, self.labels]

        def by_logits(of: Matrix) -> Parameters:
            toward = 2 * of.T[:, self.labels] * apart * self.means[self.own]
            return np.zeros(1), toward - self.onehot * toward.sum(0)

        return self.means @ (apart**2).T, by_logits

    def probabilities(self, weights: Matrix, intercepts: Matrix, strength: float) -> tuple[Matrix, Matrix, Any]:
        """Of the shifted logits (K, N): probabilities, the loss of each row, and the gradient of the margins."""
        logits = weights @ self.inputs + intercepts[:, None]
        shifted, pull = logits - logits[self.own], None
        if strength:
            table, pull = self.margins(weights, logits)
            shifted += strength / 2 * table.T[:, self.labels]
        top = shifted.max(0)
        likely = np.exp(shifted - top)
        sums = likely.sum(0)
        return likely / sums, np.log(sums) + top, pull

    def objective(
        self, weights: Matrix, intercepts: Matrix, strength: float, penalty: float
    ) -> tuple[float, Matrix, Matrix]:
        """The value, and its gradients by weights and intercepts."""
        likely, losses, pull = self.probabilities(weights, intercepts, strength)
        value = self.weights @ losses + penalty / 2 * np.vdot(weights, weights)
        likely *= self.weights
        by_logits = likely - self.onehot * self.weights
        by_weights = penalty * weights
        if pull is not None:
            more, more_logits = pull(strength / 2 * (self.onehot @ likely.T))
            by_weights = by_weights + more
            by_logits += more_logits
        return float(value), by_logits @ self.inputs.T + by_weights, by_logits.sum(1)

    def step_sizes(self, weights: Matrix, intercepts: Matrix, strength: float, penalty: float) -> Matrix:
        """One over the root of the curvature along each parameter, the same for every class."""
        likely, _, _ = self.probabilities(weights, intercepts, strength)
        wrong = float(self.weights @ (1 - likely[self.own]))
        slopes = self.classes / (self.classes - 1) * (likely * (1 - likely)).mean(0) * self.weights
        of_weights = self.inputs**2 @ slopes + 2 / (self.classes - 1) * strength * wrong * self.pooled + penalty
        of_intercepts = np.full(self.classes, slopes.sum() + 1e-8)
        return 1 / np.sqrt(np.concatenate([np.tile(of_weights, self.classes), of_intercepts]))

    def solve(
        self, strength: float, C: float, start: Parameters | None = None, *, tol: float, max_iter: int
    ) -> tuple[Parameters, int]:
        """The optimum and the number of steps: L-BFGS, preconditioned by the curvature, which is measured anew."""
        # Two rows of weights, which are opposite, share the penalty of the single row that LogisticRegression has.
        penalty = (2 if self.classes == 2 else 1) / (C * self.total)
        shape = self.classes, len(self.inputs)
        weights, intercepts = start or (np.zeros(shape), np.zeros(self.classes))
        steps = 0
        while steps < max_iter:
            sizes = self.step_sizes(weights, intercepts, strength, penalty)

            def evaluate(values: Matrix, sizes: Matrix = sizes) -> tuple[float, Matrix]:
                weights, intercepts = np.split(values * sizes, [math.prod(shape)])
                weights = weights.reshape(shape)
                value, by_weights, by_intercepts = self.objective(weights, intercepts, strength, penalty)
                return value, np.concatenate([by_weights.ravel(), by_intercepts]) * sizes

            values = np.concatenate([weights.ravel(), intercepts]) / sizes
            limits = {"maxiter": min(STEPS_PER_ROUND, max_iter - steps), "gtol": tol, "ftol": 0.0}
            found = minimize(evaluate, values, jac=True, method="L-BFGS-B", options=limits)
            weights, intercepts = np.split(found.x * sizes, [math.prod(shape)])
            weights = weights.reshape(shape)
            steps += found.nit
            # Where rough solutions are enough, the curvature of the start was near enough.
            if found.nit < 2 or (tol >= FOLD_TOL and found.nit < STEPS_PER_ROUND):
                break
        return (weights, intercepts), steps


class Trial(NamedTuple):
    """A point of the search with its score: the mean held-out log-likelihood at the best scale of the logits."""

    scaling: str | bool
    point: Point
    score: float
    scale: float
    solutions: list[Parameters]

    @property
    def strength(self) -> float:
        """Lambda."""
        return 10.0 ** self.point[0]

    @property
    def C(self) -> float:
        """As in LogisticRegression."""
        return 10.0 ** self.point[1]


class Search:
    """Chooses scaling, lambda, C and the scale of the logits by the log-likelihood of held-out rows."""

    def __init__(self, data: Data, folds: Sequence[tuple[Any, Any]], n_jobs: int | None) -> None:
        self.data, self.folds, self.n_jobs = data, folds, n_jobs
        self.labels = np.concatenate([data.labels[held_out] for _, held_out in folds])
        self.counts = np.concatenate([data.counts[held_out] for _, held_out in folds])
        self.problems: dict[str | bool, list[tuple[Problem, Matrix]]] = {}
        self.trials: dict[tuple[str | bool, Point], Trial] = {}

    def best(self, scalings: Sequence[str | bool], *, strength: float | None, C: float | None) -> Trial:
        """The best trial; values of lambda and C that are given are kept."""
        free_strength, free_C = strength is None, C is None
        first = 0.0 if strength is None else OFF if strength == 0 else math.log10(strength)
        moves = [(1.0, 0.0)] * free_strength + [(0.0, 1.0)] * free_C + [(1.0, -1.0)] * (free_strength and free_C)
        best = self.climb(self.trial(scalings[0], (first, 0.0 if C is None else math.log10(C))), moves)
        for scaling in scalings[1:]:
            here = self.trial(scaling, best.point)
            if here.score > best.score - REACH * abs(best.score):
                other = self.climb(here, moves)
                best = other if other.score > best.score + MIN_GAIN else best
        if free_strength:
            plain = self.climb(self.trial(best.scaling, (OFF, best.point[1])), [(0.0, 1.0)] * free_C)
            best = best if best.score > plain.score + MIN_GAIN else plain
        halves = [(move[0] / 2, move[1] / 2) for move in moves if best.point[0] > OFF or move[0] == 0]
        return self.climb(best, halves)

    def climb(self, best: Trial, moves: Sequence[Point]) -> Trial:
        """Steps along one direction after the other until no neighbour is better."""
        settled = False
        while not settled:
            settled = True
            for move in moves:
                for sign in (1, -1):
                    while True:
                        point = best.point[0] + sign * move[0], best.point[1] + sign * move[1]
                        if not inside(point):
                            break
                        neighbour = self.trial(best.scaling, point, best)
                        if neighbour.score <= best.score + MIN_GAIN:
                            break
                        best, settled = neighbour, False
        return best

    def trial(self, scaling: str | bool, point: Point, near: Trial | None = None) -> Trial:
        """Solve the folds at a point, from their solutions at a near one, and judge them by the held-out rows."""
        if (scaling, point) not in self.trials:
            self.trials[scaling, point] = self.solved(scaling, point, near, tol=FOLD_TOL, max_iter=FOLD_STEPS)
        return self.trials[scaling, point]

    def solved(self, scaling: str | bool, point: Point, near: Trial | None, *, tol: float, max_iter: int) -> Trial:
        """The same, to the given accuracy."""
        if scaling not in self.problems:
            share = self.data.counts / self.data.counts.sum()
            spread = np.sqrt(share @ (self.data.rows - share @ self.data.rows) ** 2)
            self.problems[scaling] = []
            for train, held_out in self.folds:
                problem = Problem(self.data.part(train), scaling, spread)
                self.problems[scaling].append((problem, problem.transform(self.data.rows[held_out])))
        starts = near.solutions if near is not None else [None] * len(self.folds)
        strength, C = 10.0 ** point[0], 10.0 ** point[1]
        found = Parallel(n_jobs=self.n_jobs, prefer="threads")(
            delayed(problem.solve)(strength, C, start, tol=tol, max_iter=max_iter)
            for (problem, _), start in zip(self.problems[scaling], starts, strict=True)
        )
        solutions = [solution for solution, _ in found]
        pairs = zip(solutions, self.problems[scaling], strict=True)
        logits = np.concatenate([weights @ rows + b[:, None] for (weights, b), (_, rows) in pairs], axis=1)
        scale = best_scale(logits, self.labels, self.counts)
        score = smoothed_likelihood(scale * logits, self.labels, self.counts)
        return Trial(scaling, point, score, scale, solutions)

    def results(self, best: Trial) -> dict[str, Any]:
        """Columns as in GridSearchCV."""
        trials = list(self.trials.values())
        return {
            "params": [{"lambda_0": t.strength, "C": t.C, "standardize": t.scaling} for t in trials],
            "scale": np.array([trial.scale for trial in trials]),
            "mean_test_score": np.array([trial.score for trial in trials]),
            "best_index": trials.index(best),
        }


def inside(point: Point) -> bool:
    """Whether the search may go there."""
    strength = point[0] == OFF or STRENGTH_LIMITS[0] <= point[0] <= STRENGTH_LIMITS[1]
    return strength and C_LIMITS[0] <= point[1] <= C_LIMITS[1]


def smoothed_likelihood(logits: Matrix, labels: Labels, counts: Matrix) -> float:
    """Mean of log p(y) over held-out rows (K, N) and one more, average row whose class is unknown.

    The additional row keeps rows that are all classified correctly from asking for infinite logits. It is the same as
    labels that are smoothed by 1 / (n + 1).
    """
    log_p = log_softmax(logits, axis=0)
    known = np.average(log_p[labels, np.arange(len(labels))], weights=counts)
    unknown = np.average(log_p.mean(0), weights=counts)
    return float((counts.sum() * known + unknown) / (counts.sum() + 1))


def best_scale(logits: Matrix, labels: Labels, counts: Matrix) -> float:
    """The factor on the logits (K, N) with the largest `smoothed_likelihood`, which is concave in it: Newton's method.

    Example:
        >>> logits = np.array([[0.1, 0.0, 0.1], [0.0, 0.1, 0.0]])
        >>> scale = best_scale(logits, np.array([0, 1, 0]), np.ones(3))
        >>> round(float(scale), 1)  # right in 3.5 cases of 4: 10 log 7
        19.5
    """
    share = counts / counts.sum()
    logits = logits - logits.mean(0)
    gain = float(share @ logits[labels, np.arange(len(labels))]) * counts.sum() / (counts.sum() + 1)
    if gain <= 0:  # no better than chance
        return 1.0
    low, high, scale = 0.0, math.inf, 1.0
    for _ in range(100):
        likely = np.exp(log_softmax(scale * logits, axis=0))
        expected = (likely * logits).sum(0)
        slope = gain - float(share @ expected)
        bend = float(share @ ((likely * logits**2).sum(0) - expected**2))
        low, high = (scale, high) if slope > 0 else (low, scale)
        step = scale + slope / bend if bend > 0 else high
        if not low < step < high:
            step = (low + high) / 2 if high < math.inf else 2 * scale
        settled, scale = abs(step - scale) <= 1e-9 * scale, step
        if settled:
            break
    return scale
