"""Brute-force oracles, written from the equations of the paper with plain loops; they never call isda.

Everything is differentiable in logits, weight and covariances, so that gradients have an oracle too. Meant for tiny
sizes in float64. Covariances are a (C, A, A) tensor; N, C and A are the numbers of samples, classes and features.
"""

from __future__ import annotations

import torch
from torch import Tensor

# -- statistics --------------------------------------------------------------------------------------------------------


def batch_mean(features: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """(C, A) mean of the features of every class in float64; zero for a class that does not occur."""
    features = features.double()
    means = []
    for c in range(num_classes):
        rows = [row for row, label in zip(features, targets.tolist(), strict=True) if label == c]
        means.append(sum(rows) / len(rows) if rows else torch.zeros_like(features[0]))
    return torch.stack(means)


def batch_covariance(features: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """(C, A, A) covariance (correction 0) of the features of every class in float64; zero for an absent class."""
    features = features.double()
    means = batch_mean(features, targets, num_classes)
    matrices = torch.zeros(num_classes, features.shape[1], features.shape[1], dtype=torch.float64)
    counts = [0] * num_classes
    for row, label in zip(features, targets.tolist(), strict=True):
        centred = row - means[label]
        matrices[label] += torch.outer(centred, centred)
        counts[label] += 1
    return torch.stack([matrix / max(count, 1) for matrix, count in zip(matrices, counts, strict=True)])


def shared_covariance(features: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """(C, A, A) the covariance of all features together, once per class."""
    together = batch_covariance(features, torch.zeros_like(targets), 1)
    return together.expand(num_classes, -1, -1).clone()


def within_covariance(features: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """(C, A, A) the mean over all features of their outer products around the mean of their class, once per class."""
    return pooled_within(
        batch_covariance(features, targets, num_classes), torch.bincount(targets, minlength=num_classes).tolist()
    )


def pooled_within(matrices: Tensor, counts: list[float]) -> Tensor:
    """(C, A, A) sum_c n_c S_c / sum_c n_c, once per class."""
    total = sum(n * matrix for n, matrix in zip(counts, matrices, strict=True)) / max(sum(counts), 1)
    return total.expand_as(matrices).clone()


def shrunk_covariance(matrices: Tensor, counts: list[float]) -> Tensor:
    """(C, A, A) covariances S_c of n_c features, shrunk towards their pooled matrix P and its diagonal.

    q = sum_{i != j} (p_ii p_jj + p_ij^2) / (m sum_{i != j} p_ij^2) with m = sum_c (n_c - 1) over the classes that
    occur, T = (1 - q) P + q diag(P), r_c = (|S_c|^2 + tr(S_c)^2) / ((n_c - 1) |S_c - T|^2), both at most 1, and 1 where
    there is nothing to know: Sigma_c = (1 - r_c) S_c + r_c T.
    """
    pooled, dim = pooled_within(matrices, counts)[0], matrices.shape[1]
    noise = signal = 0.0
    for i in range(dim):
        for j in range(dim):
            if i != j:
                noise += float(pooled[i, i] * pooled[j, j] + pooled[i, j] ** 2)
                signal += float(pooled[i, j] ** 2)
    freedom = sum(n - 1 for n in counts if n > 0)
    q = min(1.0, noise / (freedom * signal)) if freedom > 0 and signal > 0 else 1.0
    target = torch.stack(
        [torch.stack([p if i == j else (1 - q) * p for j, p in enumerate(row)]) for i, row in enumerate(pooled)]
    )
    shrunk = []
    for n, matrix in zip(counts, matrices, strict=True):
        error = float(sum(s**2 for s in matrix.flatten()) + sum(matrix[i, i] for i in range(dim)) ** 2)
        distance = float(sum(d**2 for d in (matrix - target).flatten()))
        r = min(1.0, error / ((n - 1) * distance)) if n > 1 and distance > 0 else 1.0
        shrunk.append((1 - r) * matrix + r * target)
    return torch.stack(shrunk)


def decayed_covariance(batches: list[tuple[Tensor, Tensor]], num_classes: int, decay: float) -> tuple[Tensor, Tensor]:
    """(C, A) means and (C, A, A) covariances in which a feature weighs decay^(later batches that hold its class)."""
    means, matrices, _ = decayed_statistics(batches, num_classes, decay)
    return means, matrices


def decayed_statistics(
    batches: list[tuple[Tensor, Tensor]], num_classes: int, decay: float, *, together: bool = False
) -> tuple[Tensor, Tensor, list[float]]:
    """The same, and the sum of the weights of each class; ``together`` every later batch counts, whatever it holds."""
    dim = batches[0][0].shape[1]
    means = torch.zeros(num_classes, dim, dtype=torch.float64)
    matrices = torch.zeros(num_classes, dim, dim, dtype=torch.float64)
    totals = [0.0] * num_classes
    for c in range(num_classes):
        rows, weights = [], []
        for features, targets in batches:
            mine = features[targets == c].double()
            if len(mine) or together:
                weights = [w * decay for w in weights] + [1.0] * len(mine)
                rows += list(mine)
        if rows:
            totals[c] = total = sum(weights)
            means[c] = sum(w * row for w, row in zip(weights, rows, strict=True)) / total
            for w, row in zip(weights, rows, strict=True):
                matrices[c] += w / total * torch.outer(row - means[c], row - means[c])
    return means, matrices, totals


# -- quadratic forms ---------------------------------------------------------------------------------------------------


def margin_variance(weight: Tensor, covariances: Tensor, classes: list[int]) -> Tensor:
    """(K, C) table (w_j - w_y)' Sigma_y (w_j - w_y) for y = classes[k]."""
    rows = []
    for y in classes:
        differences = [w - weight[y] for w in weight]
        rows.append(torch.stack([d @ covariances[y] @ d for d in differences]))
    return torch.stack(rows)


def tilted_variance(weight: Tensor, covariance: Tensor, tilt: Tensor) -> Tensor:
    """(C,) (w_j - wbar)' Sigma (w_j - wbar) with wbar = sum_k tilt_k w_k, for one sample."""
    middle = sum(t * w for t, w in zip(tilt, weight, strict=True))
    return torch.stack([(w - middle) @ covariance @ (w - middle) for w in weight])


# -- bounds ------------------------------------------------------------------------------------------------------------


def log_sum_exp(values: Tensor) -> Tensor:
    """log sum_j exp(v_j) of one row."""
    top = values.detach().max()
    return top + torch.log(sum(torch.exp(v - top) for v in values))


def tilted_value(logits: Tensor, tilt: Tensor, weight: Tensor, covariance: Tensor, strength: float) -> Tensor:
    """F(tilt) of one sample: log sum_j exp(z_j + strength/2 (w_j - wbar)' Sigma (w_j - wbar))."""
    return log_sum_exp(logits + strength / 2 * tilted_variance(weight, covariance, tilt))


def jensen_bound(logits: Tensor, targets: Tensor, weight: Tensor, covariances: Tensor, strength: float) -> Tensor:
    """(N,) Prop. 1: -log( exp(z_y) / sum_j exp(z_j + strength/2 (w_j - w_y)' Sigma_y (w_j - w_y)) )."""
    losses = []
    for z, y in zip(logits, targets.tolist(), strict=True):
        terms = []
        for j in range(len(weight)):
            v = weight[j] - weight[y]
            terms.append(z[j] + strength / 2 * (v @ covariances[y] @ v))
        losses.append(log_sum_exp(torch.stack(terms)) - z[y])
    return torch.stack(losses)


def tilted_bound(
    logits: Tensor, shares: Tensor, classes: Tensor, tilts: Tensor, weight: Tensor, covariances: Tensor, strength: float
) -> Tensor:
    """(N,) F(tilt_i) - q_i.z_i for given tilts (N, C) and target distributions q = ``shares`` (N, C)."""
    losses = []
    for z, q, y, tilt in zip(logits, shares, classes.tolist(), tilts, strict=True):
        losses.append(tilted_value(z, tilt, weight, covariances[y], strength) - sum(q * z))
    return torch.stack(losses)


def jensen_consistency(logits: Tensor, weight: Tensor, covariances: Tensor, strength: float) -> Tensor:
    """(N,) Prop. 2: sum_k p_k [logsumexp_j(z_j + strength/2 v_jk' Sigma v_jk) - z_k], v_jk = w_j - w_k.

    p is the detached prediction and Sigma the covariance of its most likely class.
    """
    losses = []
    for z in logits:
        p = torch.softmax(z.detach(), 0)
        label = int(p.argmax())
        loss = torch.zeros((), dtype=z.dtype)
        for k in range(len(weight)):
            terms = []
            for j in range(len(weight)):
                v = weight[j] - weight[k]
                terms.append(z[j] + strength / 2 * (v @ covariances[label] @ v))
            loss = loss + p[k] * (log_sum_exp(torch.stack(terms)) - z[k])
        losses.append(loss)
    return torch.stack(losses)


def minimum_of_tilt(logits: Tensor, weight: Tensor, covariance: Tensor, strength: float) -> float:
    """min_a F(a) over the simplex for one sample: L-BFGS on u with a = softmax(u), which knows nothing of tilting."""
    logits, weight, covariance = logits.detach(), weight.detach(), covariance.detach()
    free = torch.zeros_like(logits, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [free], max_iter=200, tolerance_grad=1e-13, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        value = tilted_value(logits, torch.softmax(free, 0), weight, covariance, strength)
        value.backward()
        return value

    optimiser.step(evaluate)
    return evaluate().item()


# -- explicit augmentation ---------------------------------------------------------------------------------------------


def explicit_loss(
    features: Tensor, targets: Tensor, directions: Tensor, weight: Tensor, bias: Tensor | None, strength: float
) -> Tensor:
    """Eq. (5): the mean over samples and draws of -sum_k q_ik log softmax(W (a_i + sqrt(strength) d_im) + b)[k].

    q is one-hot for class indices, or the targets themselves where they are distributions.
    """
    total = torch.zeros((), dtype=features.dtype)
    if targets.ndim == 1:
        targets = torch.tensor([[float(k == y) for k in range(len(weight))] for y in targets.tolist()]).to(features)
    for a, shares, draws in zip(features, targets, directions, strict=True):
        for direction in draws:
            z = weight @ (a + strength**0.5 * direction)
            if bias is not None:
                z = z + bias
            normaliser = log_sum_exp(z)
            for share, own in zip(shares, z, strict=True):
                total = total + share * (normaliser - own)
    return total / (directions.shape[0] * directions.shape[1])


def explicit_consistency(
    logits: Tensor, prediction: Tensor, directions: Tensor, weight: Tensor, strength: float
) -> list[Tensor]:
    """Section 5: for each sample the mean over draws of KL(p || p~), and the entropy of the constant p added."""
    losses = []
    for z, p, draws in zip(logits, prediction, directions, strict=True):
        divergences = []
        for direction in draws:
            augmented = z + strength**0.5 * (weight @ direction)
            log_p = augmented - log_sum_exp(augmented)
            divergences.append(sum(share * (share.log() - other) for share, other in zip(p, log_p, strict=True)))
        losses.append(sum(divergences) / len(divergences) - sum(share * share.log() for share in p))
    return losses


# -- making test cases -------------------------------------------------------------------------------------------------


def random_covariances(
    num_classes: int, dim: int, *, rank: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """(C, A, A) random positive semi-definite matrices in float64, of full rank unless ``rank`` is given."""
    shape = (num_classes, dim, rank or 2 * dim)
    factors = torch.randn(shape, generator=generator, dtype=torch.float64)
    return factors @ factors.mT / shape[2]
