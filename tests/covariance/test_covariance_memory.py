"""What statistics take, and the refusal of what would not fit, before anything is allocated."""

from __future__ import annotations

import pytest
import torch
from covariance_cases import A, C

from isda import ISDALoss, covariance
from isda.covariance import CovarianceTooLarge, memory


def floating_bytes(model: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in model.state_dict().values() if t.is_floating_point())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimates_equal_what_is_allocated(dtype):
    size = dtype.itemsize
    assert floating_bytes(covariance.create("full", C, A, dtype=dtype)) == memory.full_bytes(C, A, size)
    assert floating_bytes(covariance.create("diagonal", C, A, dtype=dtype)) == memory.diagonal_bytes(C, A, size)
    low_rank = covariance.create("low_rank", C, A, rank=3, dtype=dtype)
    assert floating_bytes(low_rank) == memory.low_rank_bytes(C, A, 3, size)


def test_figures_at_imagenet_scale():
    assert memory.full_bytes(1000, 2048) == pytest.approx(16.8e9, rel=0.01)
    assert memory.low_rank_bytes(1000, 2048, 16) == pytest.approx(287e6, rel=0.01)
    assert memory.diagonal_bytes(1000, 2048) == pytest.approx(24.6e6, rel=0.01)


@pytest.mark.parametrize(
    "make", [lambda: covariance.create("full", 100000, 20000), lambda: ISDALoss(100000, 20000, covariance="full")]
)
def test_a_full_covariance_that_cannot_fit_is_refused_before_allocation(make):
    with pytest.raises(CovarianceTooLarge) as caught:
        make()
    message = str(caught.value)
    assert "covariance='full' needs 160016.00 GB for 100000 classes x 20000 features" in message
    assert "covariance='low_rank'" in message
    assert "covariance='diagonal' needs 24.00 GB" in message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MemoryError)


def test_refusal_depends_on_what_is_free(monkeypatch):
    needed = memory.full_bytes(C, A)
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed)
    assert covariance.create("full", C, A).num_classes == C
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed - 1)
    with pytest.raises(CovarianceTooLarge):
        covariance.create("full", C, A)
    with pytest.raises(CovarianceTooLarge):
        covariance.create("full", C, A, dtype=torch.bfloat16)  # kept in float32 all the same
    monkeypatch.setattr(memory, "available_bytes", lambda device: None)  # a system that does not tell
    assert covariance.create("full", C, A).num_classes == C


def test_a_shared_covariance_needs_room_for_one_matrix_only(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: memory.full_bytes(1, A))
    assert covariance.create("shared", 1000, A).num_classes == 1000
    monkeypatch.setattr(memory, "available_bytes", lambda device: memory.full_bytes(1, A) - 1)
    with pytest.raises(CovarianceTooLarge):
        covariance.create("shared", 1000, A)


def test_free_memory_of_this_machine_is_a_sensible_number():
    free = memory.available_bytes(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50
    assert memory.available_bytes(torch.device("meta")) is None


def test_limits_of_a_container_count(monkeypatch):
    monkeypatch.setattr(memory, "_memory_available", lambda: 10**9)
    monkeypatch.setattr(memory, "_control_group_left", lambda: 10**6)
    assert memory.available_bytes(torch.device("cpu")) == 10**6
    monkeypatch.setattr(memory, "_control_group_left", lambda: None)
    assert memory.available_bytes(torch.device("cpu")) == 10**9


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Files of the system that say what they are told to, and are not there before."""
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / name.replace("/", "_"))

    def tells(**files: str) -> int | None:
        names = {
            "meminfo": "/proc/meminfo",
            "limit": "/sys/fs/cgroup/memory.max",
            "used": "/sys/fs/cgroup/memory.current",
        }
        for name, text in files.items():
            memory.Path(names[name]).write_text(text)
        return memory.available_bytes(torch.device("cpu"))

    return tells


def test_free_memory_is_what_the_system_has_and_the_container_leaves(system):
    assert system() is None
    assert system(meminfo="MemTotal:  100 kB\nMemAvailable:   7 kB\nBuffers: 1 kB\n") == 7 * 1024
    assert system(limit="max\n", used="1000\n") == 7 * 1024
    assert system(limit="5000\n") == 4000
    assert system(limit="9000\n") == 7 * 1024
    assert system(meminfo="MemTotal:  100 kB\n") == 8000


def test_free_memory_of_a_device_is_the_first_that_it_says(monkeypatch, accelerator):
    module = torch.get_device_module("pretend")
    monkeypatch.setattr(module, "mem_get_info", lambda device: (5, 9), raising=False)  # free, total
    assert memory.available_bytes(torch.device("pretend")) == 5
