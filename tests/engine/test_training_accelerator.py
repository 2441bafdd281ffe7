"""Training off the CPU: steps, evaluation and augmentation on the pretend device give what they give on the CPU."""

import pytest
import torch

import pretend_accelerator
from isda.lab.data.augment import (
    AutoAugment,
    Compose,
    Cutout,
    Draws,
    HorizontalFlip,
    Normalize,
    RandAugment,
    RandomCrop,
)
from isda.lab.methods.semi import NAMES
from isda.lab.train import Classification, SemiSupervisedClassification
from semi_runs import semi_config
from small_runs import digits, small_config
from two_devices import assert_the_same, needs_a_device, on_host_and_device

pytestmark = needs_a_device


SUPERVISED = ["cross-entropy", "isda", "isda-tilted:memory=30", "isda:covariance=diagonal"]
EXPLICIT = ["explicit:covariance=diagonal", "explicit:covariance=learned,samples=2"]
ON_TOP = ["mixup", "mixup+isda"]


@pytest.mark.parametrize("method", SUPERVISED + EXPLICIT + ON_TOP)
def test_a_supervised_run_is_the_same_and_its_steps_wait_for_nothing(method, tmp_path):
    changes = {"method": method, "network": "resnet-8", "width": 0.1, "augment": "translate", "ema": 0.9}
    config = small_config(**changes, precision="float64", dropout=0.0)
    host, device = on_host_and_device(Classification(), config, digits(), tmp_path, evaluated=True)
    assert_the_same(host, device)
    assert device.waits[-1] == []


BASELINES = ["center+isda", "large-margin", "distribution-net", "disturb-label+isda"]


@pytest.mark.parametrize("method", BASELINES)
def test_steps_of_baselines_are_the_same_and_wait_for_nothing(method, tmp_path):
    config = small_config(method=method, width=0.1, precision="float64")
    host, device = on_host_and_device(Classification(), config, digits(), tmp_path)
    assert_the_same(host, device)
    assert device.waits[-1] == []


def test_explicit_draws_from_full_covariances_are_the_same_and_wait_for_nothing(tmp_path):
    settings = {"network": "resnet-8", "width": 0.1, "precision": "float64", "dropout": 0.0}
    config = small_config(method="explicit:samples=2,lambda_0=2", **settings)
    host, device = on_host_and_device(Classification(), config, digits(), tmp_path, evaluated=True)
    assert_the_same(host, device)
    assert device.waits[-1] == []


@pytest.mark.parametrize("method", [name for name in NAMES if name.endswith("+isda")])
def test_a_semi_supervised_run_is_the_same_and_its_steps_wait_for_nothing(method, tmp_path):
    config = semi_config(method=method, precision="float64", augment="translate")
    host, device = on_host_and_device(SemiSupervisedClassification(), config, digits(), tmp_path, evaluated=True)
    assert_the_same(host, device)
    assert device.waits[-1] == []


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
