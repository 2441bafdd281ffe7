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


def covariances_of(kind: str, features: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """(C, A, A) what a model of this kind has to have learned from the features."""
    if kind == "identity":
        return torch.eye(features.shape[1], dtype=torch.float64).repeat(num_classes, 1, 1)
    if kind == "shared":
        return shared_covariance(features, targets, num_classes)
    if kind == "within":
        return within_covariance(features, targets, num_classes)
    matrices = batch_covariance(features, targets, num_classes)
    return torch.diag_embed(matrices.diagonal(dim1=1, dim2=2)) if kind == "diagonal" else matrices


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


def tilt_behind(variance: Tensor, weight: Tensor, covariance: Tensor, label: int) -> Tensor:
    """(C,) the tilt t whose tilted variances are ``variance``, for one sample; W Sigma W' has at least the rank C - 1.

    v_j - v_y = g_jj - g_yy - 2 sum_k (g_jk - g_yk) t_k with g = W Sigma W', and sum_k t_k = 1.
    """
    gram = weight @ covariance @ weight.t()
    own = gram.diagonal()
    left = torch.cat([gram - gram[label], torch.ones(1, len(gram)).to(gram)])
    right = torch.cat([(own - own[label] - variance + variance[label]) / 2, torch.ones(1).to(gram)])
    return torch.linalg.lstsq(left, right.unsqueeze(1), driver="gelsd").solution.squeeze(1)


def distributions(targets: Tensor, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """(N, C) the distributions that class indices or distributions stand for, smoothed."""
    if targets.ndim == 1:
        targets = torch.tensor([[float(k == y) for k in range(num_classes)] for y in targets.tolist()]).double()
    return (1 - smoothing) * targets + smoothing / num_classes


def reduced_loss(
    augmented: Tensor,
    plain: Tensor,
    targets: Tensor,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Rows of sum_c q_c weight_c (logsumexp(augmented) - plain_c), reduced as nn.CrossEntropyLoss says it does."""
    num_classes = plain.shape[1]
    weights = torch.ones(num_classes).to(plain) if class_weight is None else class_weight
    shares = distributions(targets, num_classes, label_smoothing)
    losses, mass = [], []
    for i, (row, z) in enumerate(zip(augmented, plain, strict=True)):
        counted = targets.ndim == 2 or int(targets[i]) != ignore_index
        total = log_sum_exp(row)
        terms = [shares[i, c] * weights[c] * (total - z[c]) for c in range(num_classes)]
        losses.append(sum(terms) if counted else torch.zeros_like(total))
        if counted:
            mass.append(weights[targets[i]] if targets.ndim == 1 else torch.ones_like(total))
    if reduction == "none":
        return torch.stack(losses)
    return sum(losses) / sum(mass) if reduction == "mean" else sum(losses)


def binary_bound(logits: Tensor, targets: Tensor, weight: Tensor, covariance: Tensor, strength: float) -> Tensor:
    """(N, K) q log(1 + exp(-z + strength/2 v)) + (1 - q) log(1 + exp(z + strength/2 v)), v = w' Sigma w."""
    rows = []
    for z, q in zip(logits, targets, strict=True):
        added = [strength / 2 * (w @ covariance @ w) for w in weight]
        zero = torch.zeros((), dtype=z.dtype)
        rows.append(
            torch.stack(
                [
                    q[k] * torch.logaddexp(added[k] - z[k], zero) + (1 - q[k]) * torch.logaddexp(added[k] + z[k], zero)
                    for k in range(len(weight))
                ]
            )
        )
    return torch.stack(rows)


# -- maps --------------------------------------------------------------------------------------------------------------


def rows_of(maps: Tensor) -> Tensor:
    """(N, D, H, W) to (N * H * W, D), pixel by pixel; (N, D) stays."""
    if maps.ndim == 2:
        return maps
    n, _, height, width = maps.shape
    return torch.stack([maps[i, :, y, x] for i in range(n) for y in range(height) for x in range(width)])


def nearest_labels(labels: Tensor, height: int, width: int) -> Tensor:
    """(N, height, width) labels picked at floor(i * in / out)."""
    _, rows, columns = labels.shape
    result = labels.new_zeros(len(labels), height, width)
    for y in range(height):
        for x in range(width):
            result[:, y, x] = labels[:, y * rows // height, x * columns // width]
    return result


def bilinear(maps: Tensor, height: int, width: int, align_corners: bool = False) -> Tensor:
    """(N, D, height, width) bilinear interpolation of (N, D, H, W), line by line."""
    for axis, size in ((2, height), (3, width)):
        before, lines = maps.shape[axis], []
        for i in range(size):
            middle = max(0.0, (i + 0.5) * before / size - 0.5)
            source = i * (before - 1) / max(size - 1, 1) if align_corners else middle
            low = min(int(source), before - 1)
            high = min(low + 1, before - 1)
            share = source - low
            lines.append(maps.select(axis, low) * (1 - share) + maps.select(axis, high) * share)
        maps = torch.stack(lines, axis)
    return maps


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
