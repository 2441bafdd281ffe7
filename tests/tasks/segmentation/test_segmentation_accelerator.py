"""Segmentation off the CPU: steps and evaluation on the pretend device give what they give on the CPU."""

from __future__ import annotations

import pytest

from isda.lab.tasks.segmentation.task import Segmentation
from segmentation_runs import drawn, small_config
from two_devices import assert_the_same, needs_a_device, on_host_and_device

pytestmark = needs_a_device


@pytest.mark.parametrize("method", ["cross-entropy:ohem=true,ohem_kept=99", "isda:covariance=full", "isda-tilted"])
def test_a_run_is_the_same_and_its_steps_wait_for_nothing(method, tmp_path):
    config = small_config(method=method, precision="float64", dropout=0.0)
    host, device = on_host_and_device(Segmentation(), config, drawn(), tmp_path, evaluated=True)
    assert_the_same(host, device)
    assert device.waits[-1] == []
