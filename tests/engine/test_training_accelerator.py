"""Training off the CPU: steps, evaluation and augmentation on the pretend device give what they give on the CPU."""

import pytest
import torch

import pretend_accelerator
from isda.data.augment import AutoAugment, Compose, Cutout, Draws, HorizontalFlip, Normalize, RandAugment, RandomCrop
from isda.engine import Place, Processes
from isda.train import Classification, SemiSupervisedClassification
from semi_runs import WRITTEN, semi_config
from small_runs import digits, small_config

pytestmark = pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")


def on_host_and_device(task, config, tmp_path, steps):
    """What a few steps and an evaluation leave on the CPU and on the pretend device; the waits of the last batch."""
    results, waits = [], []
    for name in ("cpu", "pretend"):
        with pretend_accelerator.PretendAccelerator() as accelerator:
            job = task.start(config, digits(), Place(Processes(0, 1, torch.device(name)), tmp_path))
            batches = job.batches(0)
            for step in range(steps):
                accelerator.clear()
                job.step(next(batches), step)
            waits = list(accelerator.waits)
            state = {key: value.cpu() for key, value in job.state().tensors["model"].items()}
            results.append((state, job.finish_epoch(config.epochs, steps)))
    return results, waits


def compare(results):
    (host, host_figures), (device, device_figures) = results
    for name, value in host.items():
        torch.testing.assert_close(device[name], value, rtol=1e-9, atol=1e-9)
    assert device_figures == pytest.approx(host_figures, rel=1e-6)


SUPERVISED = ["cross-entropy", "isda", "isda-tilted:decay=0.9", "isda:covariance=diagonal"]
EXPLICIT = ["explicit:covariance=diagonal", "explicit:covariance=learned,samples=2"]
ON_TOP = ["mixup", "cutmix+isda:probability=1", "manifold-mixup:layers=4", "manifold-mixup+isda:layers=2", "sam+isda"]


@pytest.mark.parametrize("method", SUPERVISED + EXPLICIT + ON_TOP)
def test_a_supervised_run_is_the_same_and_its_steps_wait_for_nothing(method, tmp_path):
    changes = {"method": method, "network": "resnet-8", "width": 0.1, "augment": "translate", "ema": 0.9}
    config = small_config(**changes, precision="float64", dropout=0.0)
    results, waits = on_host_and_device(Classification(), config, tmp_path, 3)
    compare(results)
    assert waits == []


def test_explicit_draws_from_full_covariances_are_the_same_and_wait_for_their_roots_only(tmp_path):
    settings = {"network": "resnet-8", "width": 0.1, "precision": "float64", "dropout": 0.0}
    config = small_config(method="explicit:samples=2,lambda_0=2", **settings)
    results, waits = on_host_and_device(Classification(), config, tmp_path, 3)
    compare(results)
    assert waits
    assert {wait.operation for wait in waits} <= {"aten._linalg_eigh"}


@pytest.mark.parametrize("method", [name for name in WRITTEN if name.endswith("+isda")])
def test_a_semi_supervised_run_is_the_same_and_its_steps_wait_for_nothing(method, tmp_path):
    config = semi_config(method=WRITTEN[method], precision="float64", augment="translate")
    results, waits = on_host_and_device(SemiSupervisedClassification(), config, tmp_path, 3)
    compare(results)
    assert waits == []


def test_augmentation_is_the_same_and_waits_for_nothing():
    crop_and_policies = (RandomCrop(4), HorizontalFlip(), RandAugment(), AutoAugment("cifar10"), Cutout(8))
    pipeline = Compose(*crop_and_policies, Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)))
    images = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    expected = pipeline(images, Draws.for_samples(torch.arange(6), seed=1))
    with pretend_accelerator.PretendAccelerator() as accelerator:
        there = pretend_accelerator.on_pretend(images)
        accelerator.clear()
        result = pipeline(there, Draws.for_samples(torch.arange(6), seed=1))
        assert accelerator.waits == []
        torch.testing.assert_close(result.cpu(), expected)
