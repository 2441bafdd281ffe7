"""ISDAClassifier: a scikit-learn classifier for embeddings, with labelled and unlabelled rows."""

from __future__ import annotations

import math
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from isda._utils.choices import check_choice
from isda.estimator.covariances import COVARIANCES
from isda.estimator.data import EncodedData, FitData, Scaler, Standardize, check_magnitudes, class_factors
from isda.estimator.fitting import check_folds, check_offset, fit_convex, fit_partially, fit_stochastic, network_scores
from isda.estimator.serialization import load_classifier_file, save_classifier
from isda.losses.long_tail import Offset

BOUNDS = ("jensen", "tilted")
SCALINGS = ("auto", "columns", "all")
MAX_STRENGTH = 1e9
MIN_C, MAX_C = 1e-12, 1e12
"""Beyond these bounds one part of the objective is lost in rounding; "auto" searches far inside of them."""
MIN_SCALE, MAX_SCALE = 1e-30, 1e30


def check_settings(model: Any) -> None:
    """Raise ValueError for the first invalid setting."""
    _number_or_auto("lambda_0", model.lambda_0, at_least=0, at_most=MAX_STRENGTH)
    _number_or_auto("C", model.C, at_least=MIN_C, at_most=MAX_C)
    _number_or_auto("scale", model.scale, at_least=MIN_SCALE, at_most=MAX_SCALE)
    check_choice("covariance", model.covariance, COVARIANCES)
    check_choice("bound", model.bound, BOUNDS)
    if not isinstance(model.standardize, (bool, np.bool_)):
        check_choice("standardize", model.standardize, SCALINGS)
    check_offset(model.offset)
    check_folds(model.cv)
    if model.n_jobs is not None and (isinstance(model.n_jobs, bool) or not isinstance(model.n_jobs, Integral)):
        raise ValueError(f"n_jobs must be an integer or None, got {model.n_jobs!r}")
    if model.n_jobs == 0:
        raise ValueError("n_jobs must be a number of processes, or -1 for one per processor, got 0")
    _number("tol", model.tol, above=0)
    _number("consistency", model.consistency, at_least=0)
    _number("learning_rate", model.learning_rate, above=0)
    _number("validation_fraction", model.validation_fraction, at_least=0, below=1)
    for name in ("max_iter", "epochs", "patience", "batch_size"):
        _count(name, getattr(model, name))
    if isinstance(model.hidden, str) or not hasattr(model.hidden, "__iter__"):
        raise ValueError(f"hidden must be a tuple of widths, got {model.hidden!r}")
    for width in model.hidden:
        _count("every width in hidden", width)


def _number_or_auto(name: str, value: Any, **limits: float) -> None:
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f"{name} must be a number or 'auto', got {value!r}")
        return
    _number(name, value, **limits)


def _number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float = math.inf,
) -> None:
    # Not converted first: an integer may be larger than any float.
    good = not isinstance(value, bool) and isinstance(value, Real) and value < below
    good = good and (at_least is None or value >= at_least) and (above is None or value > above)
    good = good and (at_most is None or value <= at_most)
    if not good:
        limit = f">= {at_least:g}" if at_least is not None else f"> {above:g}"
        limit += "" if at_most is None else f" and <= {at_most:g}"
        limit += "" if below == math.inf else f" and < {below:g}"
        raise ValueError(f"{name} must be a finite number {limit}, got {value!r}")


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


class ISDAClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier, or a small network, trained with implicit semantic data augmentation.

    Without hidden layers and unlabelled rows the problem is convex and solved to its one optimum: covariances of the
    classes in one pass, then preconditioned L-BFGS to the minimum of

        1/n sum_i L_i(W, b) + 1/(2 C n) |W|^2,

    where L_i bounds the expected cross-entropy over all augmented versions of row i. lambda_0=0 is scikit-learn's
    LogisticRegression(C=C), on standardised rows unless ``standardize=False``.

    Args:
        lambda_0: strength of the augmentation, at most 1e9; 0 is plain cross-entropy, "auto" is chosen together with C
            by the log-likelihood of held-out rows (``cv_results_``).
        C: inverse of the L2 penalty, as in LogisticRegression, from 1e-12 to 1e12; "auto" to choose it.
        scale: factor on the logits of the optimum, and so on ``coef_`` and ``intercept_``. Strong augmentation finds
            good directions and small logits; "auto" makes up for that by held-out rows where lambda_0 or C is chosen
            by them, and is 1 elsewhere, and for what is trained by AdamW.
        covariance: "within" (pooled within classes), "shrunk" (each class's own, shrunk towards that and its diagonal),
            "full", "diagonal", "shared" or "identity".
        bound: "jensen" (the paper's) or "tilted".
        standardize: how features are scaled first; the penalty is on the weights of the scaled features. "columns" or
            True: every feature to mean 0 and standard deviation 1, for columns with units of their own; "all": to mean
            0, and by one factor for all features to a mean variance of 1, for pixels and embeddings; False: not at
            all. "auto" is the better one of "columns" and "all" by the log-likelihood of held-out rows where lambda_0
            or C is chosen by them, and "columns" elsewhere, and for what is trained by AdamW. ``coef_`` and
            ``intercept_`` are for the features as they came.
        unlabelled: the label of unlabelled rows, for example -1 as in sklearn.semi_supervised: these do not take part
            unless ``consistency`` is above 0. None, the default, if every row has a label: then -1 is a class as any
            other.
        class_weight: None, "balanced", or weights >= 0 by label: factors of the losses, not of the covariances.
        offset: for classes of very different sizes: "logit-adjustment", "ldam", or a provider of isda.losses.long_tail
            with a strength of its own. Offsets o_yj are part of the logits in training alone. lambda_0 and C are then
            chosen by the mean over classes of the held-out log-likelihood, in which every class counts the same.
        tol: largest entry of the gradient at the end. In addition, the Newton decrement relative to the weights is at
            most 1e-6, or ``tol`` if that is less.
        max_iter: steps at most; ConvergenceWarning if they were too few.
        cv: folds for "auto": their number, a splitter, or splits.
        n_jobs: processes that solve the folds, with one thread each; None is 1 unless in a joblib.parallel_config
            context, -1 is one per processor. The choice does not depend on it, except for rounding.
        warm_start: start from the last solution; the optimum is the same.
        verbose: show progress on stderr.
        hidden: widths of hidden layers; () for a linear classifier on the inputs. A network, or unlabelled rows, are
            trained by AdamW: the settings below are for that alone.
        consistency: weight of the consistency bound (Prop. 2) on unlabelled rows; it ramps up with the strength. 0,
            the default, leaves them out.
        epochs: passes over the labelled rows at most.
        patience: epochs without a better log-likelihood on held-out rows after which training stops.
        validation_fraction: labelled rows that are held out for that; 0 to train for all epochs.
        batch_size: labelled rows per step; as many unlabelled ones go with them.
        learning_rate: of AdamW, falling to zero along a cosine.
        random_state: seed of the folds, the initial weights and the order of rows.

    Attributes:
        classes_: the labels, sorted.
        coef_: (n_classes, n_features) weights, (1, n_features) for two classes; not with hidden layers.
        intercept_: (n_classes,) or (1,).
        lambda_0_, C_, scale_: the values that were used.
        standardize_: "columns", "all" or False: how features were scaled.
        cv_results_: the values that were tried, as in GridSearchCV, if something was "auto"; else None. Those that
            fewer folds have decided about have their number as n_folds, NaN as the scores of further folds, and an
            estimated mean.
        n_iter_: (1,) steps that were taken.
        gradient_norm_: largest entry of the gradient at the end.
        network_, loss_curve_, validation_curve_: of the stochastic trainer, where it was used.

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
        scale: float | str = "auto",
        covariance: str = "within",
        bound: str = "jensen",
        standardize: str | bool = "auto",
        unlabelled: Any = None,
        class_weight: Any = None,
        offset: str | Offset | None = None,
        tol: float = 1e-5,
        max_iter: int = 1000,
        cv: Any = 5,
        n_jobs: int | None = None,
        warm_start: bool = False,
        verbose: int = 0,
        hidden: tuple[int, ...] = (),
        consistency: float = 0.0,
        epochs: int = 200,
        patience: int = 20,
        validation_fraction: float = 0.1,
        batch_size: int = 64,
        learning_rate: float = 1e-2,
        random_state: Any = None,
    ) -> None:
        self.lambda_0 = lambda_0
        self.C = C
        self.scale = scale
        self.covariance = covariance
        self.bound = bound
        self.standardize = standardize
        self.unlabelled = unlabelled
        self.class_weight = class_weight
        self.offset = offset
        self.tol = tol
        self.max_iter = max_iter
        self.cv = cv
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.verbose = verbose
        self.hidden = hidden
        self.consistency = consistency
        self.epochs = epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ISDAClassifier:
        """Train on rows X (n_samples, n_features) with labels y (n_samples,).

        ``sample_weight`` (n_samples,) says how often each row counts, in the loss and, of the convex problem, in the
        covariances.
        """
        data = self._checked(X, y, sample_weight)
        before = getattr(self, "classes_", None)
        known = data.labelled & (data.counts > 0)
        classes, encoded = np.unique(data.labels[known], return_inverse=True)
        if len(classes) < 2:
            message = f"one class: {classes.tolist()[0]!r}" if len(classes) else "none"
            unlabelled, unweighted = int((~data.labelled).sum()), int((data.counts == 0).sum())
            message += f"; {unlabelled} rows are unlabelled={self.unlabelled!r}" if unlabelled else ""
            message += f"; {unweighted} rows have sample_weight 0" if unweighted else ""
            raise ValueError(f"y must hold at least two classes, got {message}")
        factors = class_factors(self.class_weight, classes, data.labels[known], data.counts[known])
        self.classes_ = classes
        self._warm = self.warm_start and before is not None and np.array_equal(before, classes)
        others = ~data.labelled if self.consistency else np.zeros_like(known)
        rows, counts = data.rows[known | others], data.counts[known | others]
        labelled = EncodedData(data.rows[known], encoded, data.counts[known], factors, len(self.classes_))
        if self.hidden or others.any():
            self.standardize_ = self._scalings()[0]
            self.scaler_ = Scaler.of(rows, counts, self.standardize_)
            fit_stochastic(self, labelled.scaled(self.scaler_), self.scaler_.transform(data.rows[others]))
        else:
            scalers = {standardize: Scaler.of(rows, counts, standardize) for standardize in self._scalings()}
            fit_convex(self, labelled, scalers, known, data)
        return self

    def _scalings(self) -> tuple[Standardize, ...]:
        """The scalings to choose from; the first one without held-out rows."""
        if isinstance(self.standardize, str):
            return ("columns", "all") if self.standardize == "auto" else (self.standardize,)
        return ("columns",) if self.standardize else (False,)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> ISDAClassifier:
        """One pass of the stochastic trainer over these rows; ``classes`` are all labels, in the first call.

        After a fit it goes on from there. Otherwise features are scaled as those of the first call. "auto" is what the
        fit has chosen, lambda_0=0.5 and C=1 without one.
        """
        first = not hasattr(self, "classes_")
        data = self._checked(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise ValueError("classes must be given in the first call of partial_fit, got None")
            all_classes = np.unique(np.asarray(classes))
            if not _labelled(all_classes, self.unlabelled).all():
                raise ValueError(f"classes must not hold the label of unlabelled rows, got {self.unlabelled!r} in them")
        else:
            all_classes = self.classes_
        labels = data.labels[data.labelled]
        unknown = np.setdiff1d(labels, all_classes)
        if len(unknown):
            raise ValueError(f"y must hold labels of the classes {all_classes.tolist()}, got {unknown.tolist()}")
        encoded = np.searchsorted(all_classes, labels)
        factors = class_factors(self.class_weight, all_classes, labels, data.counts[data.labelled])
        if first:
            part = data.labelled if data.labelled.any() and not self.consistency else np.ones_like(data.labelled)
            self.classes_, self.standardize_ = all_classes, self._scalings()[0]
            self.scaler_ = Scaler.of(data.rows[part], data.counts[part], self.standardize_)
        rows = self.scaler_.transform(data.rows)
        scaled = EncodedData(rows[data.labelled], encoded, data.counts[data.labelled], factors, len(self.classes_))
        fit_partially(self, scaled, rows[~data.labelled])
        return self

    def _checked(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, reset: bool = True) -> FitData:
        check_settings(self)
        rows, labels = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=reset)
        check_classification_targets(labels)
        counts = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        check_magnitudes(rows, counts, standardize=bool(self.standardize))
        return FitData(rows, labels, counts, _labelled(labels, self.unlabelled))

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Logits (n_samples, n_classes); with two classes their difference (n_samples,), as scikit-learn has it."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            if hasattr(self, "coef_"):
                scores = rows @ self.coef_.T + self.intercept_
            else:
                scores = network_scores(self.network_, self.scaler_.transform(rows))
        overflows = int((~np.isfinite(scores)).any(1).sum())
        if overflows:
            largest = max(float(rows.max()), -float(rows.min()))
            raise ValueError(
                f"X must hold values of the size that the classifier was fitted to, got values up to {largest:.2g}: "
                f"the logits of {overflows} of {len(rows)} rows overflow"
            )
        if len(self.classes_) == 2:
            return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0])
        return np.asarray(scores)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities (n_samples, n_classes)."""
        return np.asarray(softmax(_two_columns(self.decision_function(X)), axis=1))

    def predict_log_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Logarithms of the class probabilities, exact where those round to 0."""
        return np.asarray(log_softmax(_two_columns(self.decision_function(X)), axis=1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (n_samples,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def to_logistic_regression(self) -> LogisticRegression:
        """A fitted LogisticRegression of scikit-learn with the same probabilities, for tools that know that class.

        Standardization and ``scale`` are part of ``coef_`` and ``intercept_`` already. Not for hidden layers.

        ONNX (tried with skl2onnx 1.20 and onnxruntime 1.31)::

            from skl2onnx import to_onnx
            onnx = to_onnx(model.to_logistic_regression(), X[:1].astype("float32"), options={"zipmap": False})
            with open("classifier.onnx", "wb") as file:
                file.write(onnx.SerializeToString())

        Example:
            >>> from sklearn.datasets import load_iris
            >>> X, y = load_iris(return_X_y=True)
            >>> model = ISDAClassifier(1.0, C=1.0).fit(X, y)
            >>> bool(np.allclose(model.to_logistic_regression().predict_proba(X), model.predict_proba(X), atol=1e-12))
            True
        """
        check_is_fitted(self)
        if not hasattr(self, "coef_"):
            raise ValueError(f"to_logistic_regression needs a linear classifier, got hidden={self.hidden!r}")
        linear = LogisticRegression(C=self.C_, max_iter=self.max_iter, tol=self.tol)
        linear.classes_, linear.n_features_in_ = self.classes_.copy(), self.n_features_in_
        linear.coef_, linear.intercept_ = self.coef_.astype(np.float64), self.intercept_.astype(np.float64)
        linear.n_iter_ = self.n_iter_.astype(np.int32)
        if len(self.classes_) == 2 and len(linear.coef_) == 2:  # one row of weights for each of two classes
            linear.coef_, linear.intercept_ = np.diff(linear.coef_, axis=0), np.diff(linear.intercept_)
        if hasattr(self, "feature_names_in_"):
            linear.feature_names_in_ = self.feature_names_in_.copy()
        return linear

    def save(self, path: str | Path) -> None:
        """Write the fitted classifier to a safetensors file, which can be read without running code."""
        check_is_fitted(self)
        save_classifier(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> ISDAClassifier:
        """Read a file of ``save``.

        Example:
            >>> import tempfile
            >>> from sklearn.datasets import load_iris
            >>> X, y = load_iris(return_X_y=True)
            >>> model, path = ISDAClassifier(1.0, C=1.0).fit(X, y), tempfile.mkdtemp() + "/iris.safetensors"
            >>> model.save(path)
            >>> bool((ISDAClassifier.load(path).predict(X) == model.predict(X)).all())
            True
        """
        return load_classifier_file(cls, Path(path))[0]


def _two_columns(scores: NDArray[Any]) -> NDArray[Any]:
    """(N, C) logits; the differences (N,) of two classes become two columns."""
    return scores if scores.ndim == 2 else np.stack([np.zeros_like(scores), scores], 1)


def _labelled(labels: NDArray[Any], unlabelled: Any) -> NDArray[np.bool_]:
    """(N,) whether each label differs from the one of unlabelled rows."""
    if unlabelled is None:
        return np.ones(len(labels), dtype=bool)
    # As objects: a value of another type than the labels differs from all of them.
    return np.array([bool(label != unlabelled) for label in labels.tolist()], dtype=bool)
