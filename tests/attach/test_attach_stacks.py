"""Classifiers whose outputs are stacked and averaged or added up, as CrossViT and EfficientViM do, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attach_helpers import CLASSES, batch
from torch import Tensor, nn

from isda import ISDALoss
from isda.attach import find_classifiers
from oracles import batch_covariance, jensen_bound

WIDTHS = (5, 6, 7)


class Branches(nn.Module):
    """Three classifiers that see different features, in a list, and learned shares."""

    def __init__(self, combine: Callable[[list[Tensor], Tensor], Tensor]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(nn.Sequential(nn.Linear(4, width), nn.Tanh()) for width in WIDTHS)
        self.heads = nn.ModuleList(nn.Linear(width, CLASSES) for width in WIDTHS)
        self.shares = nn.Parameter(torch.tensor([0.1, -0.4, 0.7]))
        self.combine = combine

    def get_classifier(self) -> nn.ModuleList:
        return self.heads

    def forward(self, x: Tensor) -> Tensor:
        outputs = [head(body(x)) for body, head in zip(self.bodies, self.heads, strict=True)]
        return self.combine(outputs, self.shares.softmax(0))


# How the outputs become logits, and the scale of each of them; None where they are the learned shares.
COMBINED: dict[str, tuple[Callable[[list[Tensor], Tensor], Tensor], list[float] | None]] = {
    "the mean": (lambda z, s: torch.stack(z).mean(0), [1 / 3] * 3),
    "the sum along the last": (lambda z, s: torch.stack(z, -1).sum(-1), [1.0] * 3),
    "the mean, counted from behind": (lambda z, s: torch.stack(z, 1).mean(-2), [1 / 3] * 3),
    "a sum with learned shares": (
        lambda z, s: torch.stack([s[number] * one for number, one in enumerate(z)]).sum(0),
        None,
    ),
    "a stack in a sum": (
        lambda z, s: (torch.stack(z[:2]).sum(0) + 3 * z[2]) / 5,
        [0.2, 0.2, 0.6],
    ),
    "a stack in a stack": (
        lambda z, s: torch.stack([torch.stack(z[:2], 2).mean(2), z[2]]).mean(0),
        [0.25, 0.25, 0.5],
    ),
}


@pytest.mark.parametrize("how", COMBINED)
def test_loss_and_gradients_are_those_of_the_features_side_by_side(how: str) -> None:
    combine, fixed = COMBINED[how]
    model, (x, y) = Branches(combine).double(), batch()
    x = x.double()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    assert criterion.feature_dim == sum(WIDTHS)
    loss = criterion(model(x), y)

    features = torch.cat([body(x) for body in model.bodies], 1).detach()
    shares = model.shares.detach().clone().requires_grad_()
    leaves = [head.weight.detach().clone().requires_grad_() for head in model.heads]
    scales = shares.softmax(0) if fixed is None else fixed
    weight = torch.cat([scale * leaf for scale, leaf in zip(scales, leaves, strict=True)], 1)
    bias = sum(scale * head.bias.detach() for scale, head in zip(scales, model.heads, strict=True))
    logits = features @ weight.t() + bias
    expected = jensen_bound(logits, y, weight, batch_covariance(features, y, CLASSES), 0.7).mean()

    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    ours = torch.autograd.grad(loss, [*(head.weight for head in model.heads), model.shares], allow_unused=True)
    theirs = torch.autograd.grad(expected, [*leaves, shares], allow_unused=True)
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)


def test_one_classifier_behind_several_dropouts_averages_their_features() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop = nn.Linear(4, CLASSES), nn.Dropout(0.5)
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen = [self.drop(x) for _ in range(4)]
            return torch.mean(torch.stack([self.fc(one) for one in self.seen], dim=0), dim=0)

    model, (x, y) = Dropped().double(), batch()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    logits = model(x.double())
    features = sum(model.seen) / 4
    covariance = batch_covariance(features, y, CLASSES)
    expected = jensen_bound(logits, y, model.fc.weight, covariance, 0.7).mean()
    torch.testing.assert_close(criterion(logits, y), expected, rtol=0, atol=1e-12)


REFUSED: dict[str, tuple[Callable[[list[Tensor], Tensor], Tensor], str]] = {
    "the largest": (lambda z, s: torch.stack(z).amax(0), "through AmaxBackward0, so they are not known to be linear"),
    "a stack that is flattened": (
        lambda z, s: torch.stack(z).view(3, -1).mean(0).view_as(z[0]),
        "through StackBackward0, so",
    ),
    "samples that are added up": (lambda z, s: torch.stack(z).sum(1), "through SumBackward1, so they are not known"),
    "something else in the stack": (
        lambda z, s: torch.stack([*z, torch.ones_like(z[0])]).mean(0),
        "through StackBackward0, so they are not known to be linear",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_no_sum_of_recorded_outputs_is_refused(how: str) -> None:
    combine, sentence = REFUSED[how]
    model, (x, y) = Branches(combine), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = model(x)
    with pytest.raises(ValueError, match=sentence):
        criterion(logits, y[: len(logits)])
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


def test_a_list_of_lists_is_one_classifier_and_an_empty_one_is_none() -> None:
    class Listed(Branches):
        def get_classifier(self) -> tuple[nn.ModuleList, ...]:
            return (self.heads, more)

    more = nn.ModuleList([nn.Linear(9, CLASSES)])
    model = Listed(lambda z, s: z[0])
    assert find_classifiers(model) == [*model.heads, more[0]]
    model.heads, more = nn.ModuleList(), nn.ModuleList()
    with pytest.raises(ValueError, match=r"model\.get_classifier\(\) must be an nn\.Linear or an .*, got ModuleList"):
        find_classifiers(model)
