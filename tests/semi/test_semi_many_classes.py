"""Semi-supervised ISDA with 1000 classes stays small."""

import subprocess
import sys

import pytest

# Grows from the imported library to the end of a step: network, statistics, both bounds and backward included.
SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
from isda.lab.networks import Network
from isda.lab.methods.semi import UnlabelledBatch, create

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

torch.set_num_threads(1)
features, covariance = int(sys.argv[1]), sys.argv[2]
before = peak()
network = Network(nn.Identity(), nn.Linear(features, 1000))
objective = create("pi-model+isda", network, labels=10_000, samples=100_000, total_steps=10, bound="tilted",
                   covariance=covariance, input_noise=0.0)
for step in range(2):
    view = UnlabelledBatch(torch.randn(64, features), second=torch.randn(64, features))
    terms, _ = objective(network, torch.randn(64, features), torch.randint(1000, (64,)), view)
    sum(terms.values()).backward()
    objective.after_step(network)
assert all(term.isfinite() for term in terms.values()) and objective.criterion.step == 2
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.parametrize(("features", "covariance"), [(128, "full"), (2048, "diagonal")])
def test_a_step_with_64_unlabelled_samples_takes_less_than_a_gigabyte(features, covariance):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(features), covariance], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 1e9
