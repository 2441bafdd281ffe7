"""covariance="auto": full up to 1 GiB of state, else low_rank, by shapes alone, said once."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn

from isda import ISDABCELoss, ISDALoss
from isda.covariance import FullCovariance, LowRankCovariance, SharedCovariance, create
from isda.covariance import memory as auto
from isda.covariance.memory import full_bytes
from isda.losses import ExplicitLoss


def test_the_limit_is_one_gib_of_state_at_four_bytes() -> None:
    assert full_bytes(1, 16383) <= 2**30 < full_bytes(1, 16384)
    assert auto.auto_name(1, 16383) == "full"
    assert auto.auto_name(1, 16384) == "low_rank"
    assert auto.auto_name(100, 640) == "full"
    assert auto.auto_name(1000, 2048) == "low_rank"


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
        "covariance='auto' is 'low_rank' (rank=16, 0.00 GiB) for 3 classes x 8 features: 'full' takes 0.0 GiB",
        "covariance='auto' is 'low_rank' (rank=4, 0.00 GiB) for 1000 classes x 64 features: 'full' takes 0.0 GiB",
    ]
