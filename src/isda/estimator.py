"""ISDAClassifier: a scikit-learn classifier for embeddings, with few labels or many, and unlabelled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor, nn

from isda.losses import ISDALoss

__all__ = ["ISDAClassifier"]

UNLABELLED = -1


class ISDAClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier, or a small network, trained with implicit semantic data augmentation.

    Rows with label -1 are unlabelled: they take part through the consistency bound (Prop. 2 of the paper). Where -1 and
    one other value are all the labels there are, -1 is taken for a class.

    Args:
        lambda_0: strength of the augmentation at the end of training; 0 is plain cross-entropy.
        covariance: full, diagonal, low_rank, shared, identity (see ISDALoss).
        bound: "tilted" or "jensen".
        hidden: widths of hidden layers; () for a linear classifier on the inputs.
        consistency: weight of the consistency bound on unlabelled rows; it ramps up with the strength.
        standardize: scale every input to mean 0 and standard deviation 1 first.
        epochs: passes over the labelled rows.
        batch_size: labelled rows per step; as many unlabelled ones go with them.
        learning_rate: of AdamW, falling to zero along a cosine.
        weight_decay: of AdamW.
        random_state: seed of the initial weights and of the order of rows.

    Attributes:
        classes_: the labels, sorted.
        model_: the trained network.
        loss_curve_: mean training loss per epoch.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> float(ISDAClassifier(random_state=0).fit(X, y).score(X, y)) > 0.85
        True
    """

    def __init__(
        self,
        lambda_0: float = 0.5,
        *,
        covariance: str = "full",
        bound: str = "tilted",
        hidden: tuple[int, ...] = (),
        consistency: float = 1.0,
        standardize: bool = True,
        epochs: int = 100,
        batch_size: int = 64,
        learning_rate: float = 1e-2,
        weight_decay: float = 1e-3,
        random_state: Any = None,
    ) -> None:
        self.lambda_0 = lambda_0
        self.covariance = covariance
        self.bound = bound
        self.hidden = hidden
        self.consistency = consistency
        self.standardize = standardize
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> ISDAClassifier:
        """Train on rows X (n_samples, n_features) with labels y (n_samples,), -1 for unlabelled rows."""
        rows, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        labelled = _labelled(labels)
        self.classes_, encoded = np.unique(labels[labelled], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes, got one class: {self.classes_.tolist()}")
        self.centre_ = rows.mean(0) if self.standardize else np.zeros(rows.shape[1], np.float32)
        spread = rows.std(0) if self.standardize else np.ones(rows.shape[1], np.float32)
        self.spread_ = np.where(spread > 0, spread, 1).astype(np.float32)
        inputs = torch.from_numpy((rows - self.centre_) / self.spread_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model_ = _network(rows.shape[1], self.hidden, len(self.classes_))
            self._train(inputs[labelled], torch.from_numpy(encoded), inputs[~labelled], seed)
        return self

    def _train(self, inputs: Tensor, targets: Tensor, unlabelled: Tensor, seed: int) -> None:
        steps = self.epochs * -(-len(inputs) // self.batch_size)
        criterion = ISDALoss.attach(
            self.model_, self.lambda_0, steps, covariance=self.covariance, bound=self.bound, sync=False
        )
        optimiser = torch.optim.AdamW(self.model_.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        order = torch.Generator().manual_seed(seed)
        self.loss_curve_: list[float] = []
        for _ in range(self.epochs):
            losses = []
            for batch in torch.randperm(len(inputs), generator=order).split(self.batch_size):
                ramp = criterion.step / steps
                loss = criterion(self.model_(inputs[batch]), targets[batch])
                if len(unlabelled) and self.consistency:
                    chosen = torch.randint(len(unlabelled), (self.batch_size,), generator=order)
                    loss = loss + self.consistency * ramp * criterion.consistency(self.model_(unlabelled[chosen]))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                losses.append(float(loss.detach()))
            self.loss_curve_.append(float(np.mean(losses)))
        self.model_.eval()

    @torch.no_grad()
    def decision_function(self, X: ArrayLike) -> NDArray[np.float32]:
        """Logits (n_samples, n_classes); with two classes their difference (n_samples,), as scikit-learn has it."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float32, reset=False)
        logits = self.model_(torch.from_numpy((rows - self.centre_) / self.spread_))
        return np.asarray(logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Class probabilities (n_samples, n_classes)."""
        scores = torch.from_numpy(self.decision_function(X))
        if scores.ndim == 1:
            scores = torch.stack([torch.zeros_like(scores), scores], 1)
        return np.asarray(torch.softmax(scores, 1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (n_samples,)."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]


def _network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def _labelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows have a label."""
    if labels.dtype.kind not in "iuf":
        return np.ones(len(labels), dtype=bool)
    labelled = labels != UNLABELLED
    return labelled if len(np.unique(labels[labelled])) > 1 else np.ones(len(labels), dtype=bool)
