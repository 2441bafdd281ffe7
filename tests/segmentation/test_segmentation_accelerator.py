"""Segmentation off the CPU: steps and evaluation on the pretend device give what they give on the CPU."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

import pretend_accelerator
from isda.engine import Place, Processes
from isda.segmentation.task import Segmentation
from segmentation_runs import drawn, small_config

pytestmark = pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")


@pytest.mark.parametrize("method", ["cross-entropy:ohem=true,ohem_kept=99", "isda:covariance=full", "isda-tilted"])
def test_a_run_is_the_same_and_its_steps_wait_for_nothing(method, tmp_path):
    config = small_config(method=method, precision="float64", dropout=0.0)
    results, waits = [], []
    for name in ("cpu", "pretend"):
        with pretend_accelerator.PretendAccelerator() as accelerator:
            place = Place(Processes(0, 1, torch.device(name)), tmp_path)
            job = Segmentation().start(config, drawn(), place)
            for step, batch in enumerate(chain(job.batches(0), job.batches(1, start=1))):
                accelerator.clear()
                job.step(batch, step)
            waits = list(accelerator.waits)
            state = {key: value.cpu() for key, value in job.state().tensors["model"].items()}
            results.append((state, job.finish_epoch(config.epochs, 3)))
    (host, host_figures), (device, device_figures) = results
    for name, value in host.items():
        torch.testing.assert_close(device[name], value, rtol=1e-9, atol=1e-9)
    assert device_figures == pytest.approx(host_figures, rel=1e-6)
    assert waits == []
