"""What lies between classifier and logits is followed: picked rows and places, tokens, scales, means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from attach_helpers import CLASSES, FEATURES, SmallNet, assert_same_state, batch, twin
from torch import Tensor, nn

from isda import ISDABCELoss, ISDALoss
from oracles import batch_covariance, jensen_bound

ORDER = torch.tensor([3, 0, 7, 7, 11])
LAST = torch.tensor([2, 4, 0, 1, 3, 2])
MASK = torch.arange(30).view(6, 5) % 3 != 1


class Tokens(SmallNet):
    """Makes (6, 5, C) logits of 30 rows, and does something with them."""

    def __init__(self, after: Callable[[Tensor], Tensor] = lambda z: z) -> None:
        super().__init__()
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(super().forward(x.view(6, 5, 4)))


def tokens() -> tuple[Tensor, Tensor]:
    """30 rows and their labels."""
    return batch(30)


# -- rows that are picked ----------------------------------------------------------------------------------------------

PICKS: dict[str, Callable[[Tensor], Tensor]] = {
    "the last token of each sequence": lambda z: z[torch.arange(6), LAST],
    "the first token": lambda z: z[:, 0],
    "the last one, from behind": lambda z: z[:, -1],
    "where a mask holds": lambda z: z[MASK],
    "sequences where a mask holds": lambda z: z[torch.tensor([True, False, True, True, False, True])].flatten(0, 1),
    "some samples": lambda z: z[ORDER[:2]].flatten(0, 1),
    "selected tokens": lambda z: z.index_select(1, torch.tensor([4, 1])).flatten(0, 1),
    "a slice": lambda z: z[1:-1, ::2].reshape(-1, z.shape[2]),
    "a part of a split": lambda z: z.split(2)[1].flatten(0, 1),
    "one of unbound tokens": lambda z: z.unbind(1)[3],
    "a part of a chunk": lambda z: z.chunk(2, 1)[1].flatten(0, 1),
    "tokens before sequences": lambda z: z.transpose(0, 1).reshape(-1, z.shape[2]),
    "the mean over tokens": lambda z: z.mean(1),
    "the mean over sequences, kept": lambda z: z.mean(-3, keepdim=True).squeeze(0),
    "picked twice": lambda z: z[1:][:, 2:].permute(1, 0, 2).reshape(-1, z.shape[2])[ORDER],
    "a row for each place": lambda z: z.movedim(2, 0).flatten(1).t(),
}


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("inside", [True, False], ids=["by the model", "by the script"])
def test_features_follow_the_rows_of_the_logits(pick: str, inside: bool) -> None:
    if pick == "one of unbound tokens" and torch.__version__.startswith("2.4."):
        pytest.skip("torch 2.4 does not keep the number of outputs of unbind")
    after = PICKS[pick]
    model, (x, _) = Tokens(after if inside else lambda z: z).double(), tokens()
    x = x.double()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    logits = model(x) if inside else after(model(x))
    features = after(model.body(x).view(6, 5, FEATURES))
    targets = torch.arange(len(logits)) % CLASSES
    loss = criterion(logits, targets)
    by_hand = twin(criterion)
    expected = by_hand(logits, targets, features=features, weight=model.fc.weight)
    torch.testing.assert_close(logits, features @ model.fc.weight.t() + model.fc.bias, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    for name, value in criterion.state_dict().items():
        torch.testing.assert_close(value, by_hand.state_dict()[name], rtol=0, atol=1e-12)


def test_parts_of_a_pass_count_once_each() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion, expected = (
        ISDALoss.attach(model, lambda_0=0.5, schedule="constant"),
        ISDALoss(CLASSES, FEATURES, 0.5, schedule="constant"),
    )
    logits = model(x)
    for part in (slice(0, 5), slice(5, 12), slice(0, 5), slice(5, 12)):
        criterion(logits[part], y[part])
    for part in (slice(0, 5), slice(5, 12)):
        expected(logits[part], y[part], features=model.body(x)[part], weight=model.fc.weight)
    assert int(criterion.covariance.count.sum()) == len(x)
    assert_same_state(criterion, expected)


def test_a_labelled_and_an_unlabelled_half_share_a_pass() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion, expected = (
        ISDALoss.attach(model, lambda_0=0.5, schedule="constant"),
        ISDALoss(CLASSES, FEATURES, 0.5, schedule="constant"),
    )
    logits = model(x)
    loss = criterion(logits[:4], y[:4]) + criterion.consistency(logits[4:])
    wanted = expected(logits[:4], y[:4], features=model.body(x)[:4], weight=model.fc.weight)
    wanted = wanted + expected.consistency(logits[4:], weight=model.fc.weight)
    torch.testing.assert_close(loss, wanted)


def test_an_index_that_changed_since_is_refused() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion, index = ISDALoss.attach(model, schedule="constant"), torch.arange(12)
    logits = model(x)[index]
    index += 1
    with pytest.raises(ValueError, match=r"IndexBackward0, which can no longer be read.*modified by an inplace"):
        criterion(logits, y)


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("soft", [False, True], ids=["indices", "distributions"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_tokens_are_taken_with_their_classes_last(reduction: str, soft: bool) -> None:
    model, (x, y) = Tokens(), tokens()
    targets = F.one_hot(y, CLASSES).float().view(6, 5, CLASSES) if soft else y.view(6, 5).clone()
    if not soft:
        targets[0, :2] = -100
    criterion = ISDALoss.attach(model, lambda_0=0.5, reduction=reduction, schedule="constant")
    logits, by_hand = model(x), twin(criterion, reduction=reduction)
    loss = criterion(logits, targets)
    rows = targets.reshape(-1, CLASSES) if soft else targets.flatten()
    wanted = by_hand(logits.flatten(0, 1), rows, features=model.body(x), weight=model.fc.weight)
    torch.testing.assert_close(loss, wanted.view(6, 5) if reduction == "none" else wanted)
    assert_same_state(criterion, by_hand)


@pytest.mark.parametrize("length", [5, CLASSES], ids=["", "as many tokens as classes"])
@pytest.mark.parametrize("mode", ["the model", "the criterion"])
def test_tokens_are_evaluated_with_their_classes_last(length: int, mode: str) -> None:
    model = SmallNet()
    x, y = torch.randn(6, length, 4), torch.arange(6 * length).view(6, length) % CLASSES
    criterion = ISDALoss.attach(model, schedule="constant")
    model.eval()
    if mode == "the criterion":
        criterion.eval()
    with torch.no_grad():
        logits = model(x)
        assert torch.equal(criterion(logits, y), F.cross_entropy(logits.transpose(1, 2), y))


def test_maps_with_their_classes_last_become_pixels() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(2, 5, 6, 4), torch.arange(60).view(2, 5, 6) % 3
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    logits = model(x)
    features = model[:2](x).movedim(-1, 1)
    wanted = twin(criterion)(logits.movedim(-1, 1), y, features=features, weight=model[2].weight)
    assert torch.equal(criterion(logits, y), wanted)


# -- scales ------------------------------------------------------------------------------------------------------------

SCALES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "times": (lambda z: z * 30, 30.0),
    "by": (lambda z: z / 4, 0.25),
    "twice": (lambda z: (3 * z[:12] / 2).view(12, CLASSES), 1.5),
    "in place": (lambda z: z.clone().mul_(2), 2.0),
    "added to itself": (lambda z: z + 2 * z, 3.0),
    "a difference": (lambda z: 3 * z - z, 2.0),
}


@pytest.mark.parametrize("name", SCALES)
def test_scaled_logits_are_those_of_the_scaled_weight(name: str) -> None:
    change, scale = SCALES[name]
    model, (x, y) = SmallNet().double(), batch()
    x = x.double()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    loss = criterion(change(model(x)), y)
    features, weight = model.body(x).detach(), model.fc.weight.detach().clone().requires_grad_()
    logits = features @ (scale * weight).t() + scale * model.fc.bias.detach()
    covariance = batch_covariance(features, y, CLASSES)
    expected = jensen_bound(logits, y, scale * weight, covariance, 0.7).mean()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    gradients = (torch.autograd.grad(loss, model.fc.weight)[0], torch.autograd.grad(expected, weight)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


@pytest.mark.parametrize("first", [True, False])
def test_a_learned_temperature_learns_from_the_variance_too(first: bool) -> None:
    class Tempered(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(0.3))

        def forward(self, x: Tensor) -> Tensor:
            scale, logits = self.temperature.exp(), super().forward(x)
            return scale * logits if first else logits * scale

    model, (x, y) = Tempered().double(), batch()
    x = x.double()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    loss = criterion(model(x), y)
    temperature = model.temperature.detach().clone().requires_grad_()
    features, weight = model.body(x).detach(), temperature.exp() * model.fc.weight.detach()
    logits = features @ weight.t() + temperature.exp() * model.fc.bias.detach()
    expected = jensen_bound(logits, y, weight, batch_covariance(features, y, CLASSES), 0.7).mean()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    gradients = (torch.autograd.grad(loss, model.temperature)[0], torch.autograd.grad(expected, temperature)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


# -- places ------------------------------------------------------------------------------------------------------------


def test_samples_of_upsampled_logits_can_be_picked_but_no_places() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Upsample(scale_factor=2))
    x, y = torch.randn(3, 3, 4, 4), torch.arange(192).view(3, 8, 8) % 4
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = model(x)
    wanted = twin(criterion)(logits[1:], y[1:], features=model[:2](x)[1:], weight=model[2].weight)
    assert torch.equal(criterion(logits[1:], y[1:]), wanted)
    with pytest.raises(ValueError, match=r"through SliceBackward0, which mixes classes, or pixels that were upsampled"):
        criterion(model(x)[:, :, 1:], y[:, 1:])
    with pytest.raises(ValueError, match="which mixes classes, or pixels that were upsampled"):
        criterion(model(x).permute(0, 2, 3, 1).reshape(-1, 4), y.flatten())


def test_several_labels_per_sample_follow_as_well() -> None:
    model, (x, _) = Tokens(lambda z: z[torch.arange(6), LAST] / 2), tokens()
    targets = torch.arange(18).view(6, 3) % 2
    criterion = ISDABCELoss.attach(model, lambda_0=0.5, schedule="constant")
    features = model.body(x).view(6, 5, FEATURES)[torch.arange(6), LAST]
    by_hand = ISDABCELoss(CLASSES, FEATURES, 0.5, schedule="constant")
    logits = model(x)
    wanted = by_hand(logits, targets, features=features, weight=model.fc.weight / 2)
    torch.testing.assert_close(criterion(logits, targets), wanted)


def test_pixels_picked_by_positions_on_both_sides_of_the_classes() -> None:
    """Positions of sample, row and column around the axis of the classes: the picked dimension comes first."""
    model = nn.Sequential(nn.Conv2d(3, FEATURES, 1), nn.ReLU(), nn.Conv2d(FEATURES, CLASSES, 1))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, 5, 6, generator=generator)
    at = [torch.randint(size, (20,), generator=generator) for size in (4, 5, 6)]
    targets = torch.arange(20) % CLASSES
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant", covariance="full")
    by_hand = twin(criterion)
    loss = criterion(model(images)[at[0], :, at[1], at[2]], targets)
    features = model[:2](images).permute(0, 2, 3, 1)[at[0], at[1], at[2]]
    head = model[2]
    logits = features @ head.weight.flatten(1).t() + head.bias
    expected = by_hand(logits, targets, features=features, weight=head.weight.flatten(1))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(criterion.covariance.mean, by_hand.covariance.mean, rtol=1e-5, atol=1e-6)
