"""What tests of several processes share: a network whose steps do not depend on how a batch is divided, torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from torch import nn

from isda.networks import Network


def plain_network() -> Network:
    """Convolutions without batch norm, whose statistics would depend on how a batch is shared out."""
    torch.manual_seed(3)
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3), nn.Tanh(), nn.Flatten()
    )
    return Network(body, nn.Linear(48, 10))


def torchrun(processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in several processes, which import what this one can."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment
    )
