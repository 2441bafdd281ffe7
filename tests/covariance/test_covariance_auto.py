"""covariance="auto": full up to 1 GiB of state and a limit of work per step, else low_rank; said once."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from isda import ISDABCELoss, ISDALoss
from isda.covariance import FullCovariance, LowRankCovariance, SharedCovariance, create
from isda.covariance import memory as auto
from isda.covariance.memory import full_bytes, full_flops, low_rank_flops
from isda.losses import ExplicitLoss


def test_the_limit_is_one_gib_of_state_at_four_bytes() -> None:
    assert full_bytes(1, 16383) <= 2**30 < full_bytes(1, 16384)
    assert auto.auto_name(1, 16383) == "full"
    assert auto.auto_name(1, 16384) == "low_rank"
    assert auto.auto_name(100, 640) == "full"
    assert auto.auto_name(1000, 2048) == "low_rank"


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu"), "meta"])
def test_the_limit_of_work_on_a_cpu_is_50_gflop(device: torch.device | str | None) -> None:
    assert full_flops(100, 1581) <= 5e10 < full_flops(100, 1582)
    assert auto.auto_name(100, 1581, device) == "full"
    assert auto.auto_name(100, 1582, device) == "low_rank"
    assert auto.auto_name(1000, 512, device) == "low_rank"
    # CIFAR, Tiny ImageNet with a ResNet-18, Cityscapes.
    for shape in ((10, 640), (100, 640), (100, 342), (200, 512), (19, 512)):
        assert auto.auto_name(*shape, device) == "full"


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "xpu"])
def test_accelerators_may_take_a_hundred_times_as_much_work(device: str) -> None:
    assert auto.auto_name(1000, 512, device) == "full"
    assert full_bytes(3000, 298) <= 2**30
    assert full_flops(3000, 298) <= 5e12
    assert auto.auto_name(3000, 298, device) == "full"
    assert full_flops(8000, 180) <= 5e12 < full_flops(8800, 180)
    assert auto.auto_name(8000, 180, device) == "full"
    assert auto.auto_name(8800, 180, device) == "low_rank"
    assert auto.auto_name(1000, 2048, device) == "low_rank", "the memory still counts"


def test_full_is_kept_where_low_rank_would_take_as_much_work() -> None:
    assert full_flops(5000, 64) == low_rank_flops(5000, 64, 16) > 5e10
    assert auto.auto_name(5000, 64) == "full"
    assert auto.auto_name(5000, 65) == "low_rank"


def test_the_work_of_a_step_is_counted() -> None:
    """At one row per class, for a step of each model; what else there is, is of lower order in A or in C."""
    num_classes, dim, rank = 60, 256, 4
    for name, settings, least in (
        ("full", {}, full_flops(num_classes, dim)),
        ("low_rank", {"rank": rank}, low_rank_flops(num_classes, dim, rank)),
    ):
        criterion = ISDALoss(num_classes, dim, 0.5, covariance=name, schedule="constant", **settings)
        weight = torch.randn(num_classes, dim, requires_grad=True)
        features, targets = torch.randn(num_classes, dim), torch.arange(num_classes)
        with FlopCounterMode(display=False) as counter:
            criterion(features @ weight.detach().T, targets, features=features, weight=weight).backward()
        lower = 2 * num_classes * dim**2 + 12 * num_classes**2 * dim
        assert least <= counter.get_total_flops() <= least + lower


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_alone_decide(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(auto, "LARGEST_FULL_BYTES", full_bytes(3, 8))
    assert isinstance(create("auto", 3, 8, dtype=dtype), FullCovariance)
    assert isinstance(create("auto", 3, 9, dtype=dtype), LowRankCovariance)


def test_it_is_the_default_of_every_criterion_attached_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(8, 3)
    assert type(ISDALoss.attach(model, schedule="constant").covariance) is FullCovariance
    assert type(ISDALoss(3, 8, covariance="auto", schedule="constant").covariance) is FullCovariance
    monkeypatch.setattr(auto, "LARGEST_FULL_BYTES", 100)
    for criterion in (
        ISDALoss.attach(model, schedule="constant"),
        ISDALoss(3, 8, covariance="auto", schedule="constant"),
        ISDABCELoss.attach(model, schedule="constant"),
        ExplicitLoss.attach(model, schedule="constant"),
    ):
        assert type(criterion.covariance) is LowRankCovariance
    assert type(ISDALoss.attach(model, covariance="full", schedule="constant").covariance) is FullCovariance
    assert type(ISDALoss.attach(model, covariance="shared", schedule="constant").covariance) is SharedCovariance
    assert type(ISDALoss(3, 8, schedule="constant").covariance) is LowRankCovariance, "the default of both"
    assert (
        type(ISDALoss.attach(model, covariance=FullCovariance(3, 8), schedule="constant").covariance) is FullCovariance
    )


def test_a_rank_is_for_the_low_rank_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(ISDALoss(3, 8, covariance="auto", rank=2, schedule="constant").covariance) is FullCovariance
    monkeypatch.setattr(auto, "LARGEST_FULL_BYTES", 100)
    assert ISDALoss(3, 8, covariance="auto", rank=2, schedule="constant").covariance.rank == 2
    with pytest.raises(ValueError, match=r"has no setting 'rnk' with covariance='auto'.*rank"):
        ISDALoss(3, 8, covariance="auto", rnk=2, schedule="constant")
    with pytest.raises(ValueError, match=r"covariance must be one of.*auto"):
        ISDALoss(3, 8, covariance="automatic", schedule="constant")


def test_it_says_once_what_it_takes_and_never_as_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto, "LARGEST_FULL_BYTES", 100)
    monkeypatch.setattr(auto, "_logged", set())
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "isda"):
        warnings.simplefilter("error")
        for _ in range(3):
            ISDALoss(3, 8, covariance="auto", schedule="constant")
            ISDALoss(3, 8, schedule="constant")
        create("auto", 1000, 64, rank=4)
    assert [record.getMessage() for record in caplog.records] == [
        "covariance='auto' is 'low_rank' (rank=16, 0.00 GiB) for 3 classes x 8 features: 'full' takes 0.0 GiB and up "
        "to 0 GFLOP per step",
        "covariance='auto' is 'low_rank' (rank=4, 0.00 GiB) for 1000 classes x 64 features: 'full' takes 0.0 GiB and "
        "up to 8 GFLOP per step",
    ]
