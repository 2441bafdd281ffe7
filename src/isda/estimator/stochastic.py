"""Mini-batch training of what is not convex: hidden layers, and unlabelled rows by the consistency bound (Prop. 2).

AdamW. The strength rises over the first quarter of the epochs and then stays constant, so that early stopping does
not select a weaker one. The weights with the best held-out log-likelihood are kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from isda.estimator.data import log_likelihood, print_progress
from isda.losses import ISDALoss
from isda.losses.long_tail import Offset

if TYPE_CHECKING:
    from isda.estimator.classifier import ISDAClassifier


class StochasticFit(NamedTuple):
    """The result of training."""

    network: nn.Sequential
    """Hidden layers, and the classifier as the last one."""
    loss_curve: list[float]
    """Mean training loss of every epoch."""
    validation_curve: list[float]
    """Log-likelihood of the held-out rows before the first epoch and after every one; empty without such rows."""
    best_epoch: int
    """The number of epochs after which the weights were kept."""


class LabelledRows(NamedTuple):
    """Rows with labels."""

    inputs: Tensor  # (N, A)
    targets: Tensor  # (N,)
    weights: Tensor  # (N,) of the losses


def make_network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them.

    Example:
        >>> [type(layer).__name__ for layer in make_network(4, (8,), 3)]
        ['Linear', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def classifier_of(network: nn.Sequential) -> nn.Linear:
    """The last layer of a network that ``make_network`` has made."""
    return cast(nn.Linear, network[-1])


@dataclass(frozen=True)
class StochasticTrainer:
    """Trains with the settings of a classifier, and the strength and C that were chosen."""

    settings: ISDAClassifier
    strength: float
    C: float
    offset: Offset | None

    def fit(
        self, network: nn.Sequential, rows: LabelledRows, unlabelled: Tensor, held_out: LabelledRows | None, seed: int
    ) -> StochasticFit:
        """Train ``network`` in place on labelled rows and unlabelled ones (M, A), with early stopping on ``held_out``.

        Without held-out rows all epochs are trained.
        """
        epochs, patience = self.settings.epochs, self.settings.patience
        steps = epochs * -(-len(rows.inputs) // self.settings.batch_size)
        criterion = self.criterion(network, -(-steps // 4))
        optimiser = self.optimiser(network)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        order = torch.Generator().manual_seed(seed)
        losses: list[float] = []
        scores = [] if held_out is None else [_score(network, held_out)]
        best, best_epoch = copy.deepcopy(network.state_dict()), 0
        for epoch in range(1, epochs + 1):
            losses.append(self.train_epoch(network, criterion, optimiser, rows, unlabelled, order, schedule))
            if held_out is None:
                best_epoch = epoch
            else:
                scores.append(_score(network, held_out))
                if scores[-1] > scores[best_epoch]:
                    best, best_epoch = copy.deepcopy(network.state_dict()), epoch
            if self.settings.verbose:
                score = "" if held_out is None else f", held-out log-likelihood {scores[-1]:.4f}"
                print_progress(f"epoch {epoch}: loss {losses[-1]:.4f}{score}")
            if epoch - best_epoch >= patience:
                break
        if held_out is not None:
            network.load_state_dict(best)
        network.eval()
        return StochasticFit(network, losses, scores, best_epoch)

    def criterion(self, network: nn.Sequential, total_steps: int | None) -> ISDALoss:
        """The criterion of the network's classifier."""
        head = classifier_of(network)
        criterion = ISDALoss(
            head.out_features,
            head.in_features,
            self.strength,
            total_steps,
            schedule="constant" if total_steps is None else "linear",
            covariance=self.settings.covariance,
            bound=self.settings.bound,
            offset=self.offset,
            reduction="none",
        )
        criterion.covariance.sync = False
        return criterion

    def optimiser(self, network: nn.Sequential) -> torch.optim.Optimizer:
        """AdamW without its own decay: the penalty 1/(2 C n) |W|^2 is a part of the loss, as in the convex problem."""
        return torch.optim.AdamW(network.parameters(), self.settings.learning_rate, weight_decay=0.0)

    def train_epoch(
        self,
        network: nn.Sequential,
        criterion: ISDALoss,
        optimiser: torch.optim.Optimizer,
        rows: LabelledRows,
        unlabelled: Tensor,
        order: torch.Generator,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    ) -> float:
        """One pass over the labelled rows; the mean loss."""
        head, total = classifier_of(network), float(rows.weights.sum())
        network.train()
        losses = []
        for batch in torch.randperm(len(rows.inputs), generator=order).split(self.settings.batch_size):
            features = network[:-1](rows.inputs[batch])
            each = criterion(head(features), rows.targets[batch], features=features, weight=head.weight)
            weights = rows.weights[batch]
            loss = (each * weights).sum() / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
            if len(unlabelled) and self.settings.consistency:
                chosen = torch.randint(len(unlabelled), (self.settings.batch_size,), generator=order)
                logits = head(network[:-1](unlabelled[chosen]))
                ramp = 1.0 if self.strength == 0 else criterion.strength / self.strength
                loss = (
                    loss + self.settings.consistency * ramp * criterion.consistency(logits, weight=head.weight).mean()
                )
            squares = sum(layer.weight.square().sum() for layer in network if isinstance(layer, nn.Linear))
            loss = loss + squares / (2 * self.C * total)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if schedule is not None:
                schedule.step()
            losses.append(float(loss.detach()))
        network.eval()
        return sum(losses) / len(losses)


@torch.no_grad()
def _score(network: nn.Sequential, rows: LabelledRows) -> float:
    return log_likelihood(network.eval()(rows.inputs), rows.targets, rows.weights)
