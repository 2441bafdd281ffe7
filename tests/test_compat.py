"""The published call signatures: losses, gradients and statistics against the equations, and a script in each style."""

from __future__ import annotations

import copy
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.compat import cifar, imagenet, segmentation

CLASSES, FEATURES = 3, 4


class Statistics:
    """Eqs. (1) to (3) of the paper, literally: mean and covariance of a class updated by those of a batch."""

    def __init__(self) -> None:
        self.amount = [0] * CLASSES
        self.mean = [torch.zeros(FEATURES, dtype=torch.float64) for _ in range(CLASSES)]
        self.covariance = [torch.zeros(FEATURES, FEATURES, dtype=torch.float64) for _ in range(CLASSES)]

    def update(self, features: Tensor, labels: Tensor) -> None:
        for c in range(CLASSES):
            rows = [row.detach() for row, label in zip(features, labels.tolist(), strict=True) if label == c]
            if not rows:
                continue
            n, m = self.amount[c], len(rows)
            mean = sum(rows) / m
            covariance = sum(torch.outer(row - mean, row - mean) for row in rows) / m
            apart = torch.outer(self.mean[c] - mean, self.mean[c] - mean)
            self.covariance[c] = (n * self.covariance[c] + m * covariance) / (n + m) + n * m * apart / (n + m) ** 2
            self.mean[c] = (n * self.mean[c] + m * mean) / (n + m)
            self.amount[c] = n + m

    def augmented(self, logits: Tensor, label: int, weight: Tensor, ratio: float, diagonal: bool) -> Tensor:
        """Logits of one sample plus ratio/2 times the variance of each margin."""
        covariance = self.covariance[label]
        if diagonal:
            covariance = torch.diag(covariance.diagonal())
        margins = [(w - weight[label]) @ covariance @ (w - weight[label]) for w in weight]
        return logits + ratio / 2 * torch.stack(margins)


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    return torch.log(torch.exp(logits).sum()) - logits[label]


def assert_statistics(estimator: nn.Module, expected: Statistics, diagonal: bool) -> None:
    matrices = torch.stack(expected.covariance)
    if diagonal:
        matrices = matrices.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(estimator.CoVariance, matrices, rtol=0, atol=1e-12)
    torch.testing.assert_close(estimator.Ave, torch.stack(expected.mean), rtol=0, atol=1e-12)
    assert estimator.Amount.tolist() == expected.amount


# -- networks in the style of the published scripts --------------------------------------------------------------------


class Extractor(nn.Sequential):
    """Features for the CIFAR script."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, FEATURES))
        self.feature_num = FEATURES


class BothOutputs(nn.Module):
    """Logits, and features on demand, for the ImageNet script."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = Extractor(), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, isda: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        features = self.body(x)
        return (self.fc(features), features) if isda else self.fc(features)


class Pixels(nn.Module):
    """A segmentation network with stride 2."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 6, 2, stride=2), nn.Tanh(), nn.Conv2d(6, FEATURES, 1))
        self.final_conv = nn.Conv2d(FEATURES, CLASSES, 1)


def data(seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, generator=generator)
    return x, x[:, :CLASSES].argmax(1)


def pixel_data(seed: int) -> tuple[Tensor, Tensor]:
    """Images (2, 2, 6, 6) and labels at that resolution, some of them 255."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 2, 6, 6, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    y[torch.rand(2, 6, 6, generator=generator) < 0.2] = 255
    return x, y


# -- CIFAR and ImageNet ------------------------------------------------------------------------------------------------


class Run:
    """One style: the criterion, the network, and a call."""

    def __init__(self, style: str) -> None:
        self.diagonal = style == "imagenet"
        module: ModuleType = imagenet if self.diagonal else cifar
        self.criterion = module.ISDALoss(FEATURES, CLASSES).double()
        if self.diagonal:
            self.model = BothOutputs().double()
            self.body, self.fc = self.model.body, self.model.fc
        else:
            self.body, head = Extractor().double(), nn.Sequential(nn.Linear(FEATURES, CLASSES)).double()
            self.model, self.fc, self.head = self.body, head[0], head

    def parameters(self) -> list[nn.Parameter]:
        return [*self.body.parameters(), *self.fc.parameters()]

    def __call__(self, x: Tensor, y: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
        if self.diagonal:
            return self.criterion(self.model, x, y, ratio)
        return self.criterion(self.model, self.head, x, y, ratio)


both = pytest.mark.parametrize("style", ["cifar", "imagenet"])


@both
def test_loss_gradients_and_statistics_follow_the_equations_step_by_step(style: str) -> None:
    run, expected = Run(style), Statistics()
    optimizer = torch.optim.SGD(run.parameters(), lr=0.5)
    for step in range(4):
        ratio = 0.5 * step / 3
        x, y = data(step)
        x = x.double()
        loss, output = run(x, y, ratio)
        features = run.body(x)
        expected.update(features, y)
        logits = features @ run.fc.weight.t() + run.fc.bias
        rows = zip(logits, y.tolist(), strict=True)
        wanted = sum(
            cross_entropy(expected.augmented(z, label, run.fc.weight, ratio, run.diagonal), label) for z, label in rows
        ) / len(y)
        torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(output, logits, rtol=0, atol=1e-12)
        ours, theirs = (torch.autograd.grad(value, run.parameters(), retain_graph=True) for value in (loss, wanted))
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        assert_statistics(run.criterion.estimator, expected, run.diagonal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@both
def test_eval_mode_is_plain_cross_entropy_without_state_change(style: str) -> None:
    run, (x, y) = Run(style), data(0)
    x = x.double()
    run(x, y, 0.5)
    before = copy.deepcopy(run.criterion.state_dict())
    run.criterion.eval()
    loss, output = run(x, y, 0.5)
    assert torch.equal(loss, F.cross_entropy(output, y))
    after = run.criterion.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@both
def test_wrappers_of_data_parallel_training_are_looked_through(style: str) -> None:
    plain, wrapped, (x, y) = Run(style), Run(style), data(0)
    wrapped.body.load_state_dict(plain.body.state_dict())
    wrapped.fc.load_state_dict(plain.fc.state_dict())
    wrapped.model = nn.DataParallel(wrapped.model)
    if style == "cifar":
        wrapped.head = nn.DataParallel(wrapped.head)
    assert torch.equal(wrapped(x.double(), y, 0.5)[0], plain(x.double(), y, 0.5)[0])


# -- Cityscapes --------------------------------------------------------------------------------------------------------


def test_augmented_logits_gradients_and_statistics_follow_the_equations_pixel_by_pixel() -> None:
    net, expected = Pixels().double(), Statistics()
    criterion = segmentation.ISDALoss(FEATURES, CLASSES, torch.device("cpu")).double()
    for step in range(3):
        ratio = 0.4 * (step + 1)
        x, target = pixel_data(step)
        features = net.body(x.double())
        logits = net.final_conv(features)
        augmented = criterion(features, net.final_conv, logits, target, ratio)
        assert augmented.shape == logits.shape == (2, CLASSES, 3, 3)

        coarse = target[:, ::2, ::2]  # the nearest label of a pixel twice as large
        known = coarse.flatten() != 255
        expected.update(features.permute(0, 2, 3, 1).reshape(-1, FEATURES)[known], coarse.flatten()[known])
        weight = net.final_conv.weight.flatten(1)
        wanted = logits.clone()
        for n in range(2):
            for i in range(3):
                for j in range(3):
                    label = int(coarse[n, i, j])
                    if label != 255:
                        pixel = logits[n, :, i, j]
                        wanted[n, :, i, j] = expected.augmented(pixel, label, weight, ratio, diagonal=True)
        torch.testing.assert_close(augmented, wanted, rtol=0, atol=1e-12)
        probe = torch.randn_like(wanted)
        totals = [(logits_ * probe).sum() for logits_ in (augmented, wanted)]
        ours, theirs = (torch.autograd.grad(total, net.parameters(), retain_graph=True) for total in totals)
        for got, want in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        assert_statistics(criterion.estimator, expected, diagonal=True)


def test_bad_labels_raise_before_anything_changes() -> None:
    net, criterion = Pixels(), segmentation.ISDALoss(FEATURES, CLASSES, "cpu")
    x, target = pixel_data(0)
    features = net.body(x)
    with pytest.raises(ValueError, match=r"targets must lie in 0\.\.2 or be ignore_index, got 7"):
        criterion(features, net.final_conv, net.final_conv(features), target.masked_fill(target == 1, 7), 0.5)
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


EPOCHS, LAMBDA_0 = 15, 0.5


def test_a_cifar_script_trains() -> None:
    from isda.compat.cifar import ISDALoss

    model, fc = Extractor(), nn.Linear(FEATURES, CLASSES)
    criterion = ISDALoss(int(model.feature_num), CLASSES)
    optimizer = torch.optim.SGD([*model.parameters(), *fc.parameters()], lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        ratio = LAMBDA_0 * (epoch / EPOCHS)
        for batch in range(4):
            x, target = data(batch, 32)
            loss, _ = criterion(model, fc, x, target, ratio)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    x, target = (torch.cat(parts) for parts in zip(*(data(batch, 32) for batch in range(4)), strict=True))
    assert float((fc(model(x)).argmax(1) == target).float().mean()) > 0.75  # chance is 0.33
