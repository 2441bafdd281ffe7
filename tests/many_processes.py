"""What tests of several processes share: a network whose steps do not depend on how a batch is divided, and launchers.

`torchrun` is what users have. `side_by_side` runs a script in processes that are copies of one which has imported torch
already, so that a test pays for its steps and not for imports.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from isda.lab.networks import Network


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


def side_by_side(processes: int, script: Path, *arguments: object, seconds: float = 300) -> None:
    """Run a script in several processes with torchrun's variables; AssertionError with its output where one fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["isda.lab.train", "isda.lab.networks", "torch._dynamo", "torch.distributed"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(rank)) for rank in range(processes)]
        words = [str(script), *map(str, arguments)]
        started = []
        for rank, output in enumerate(outputs):
            environment = os.environ | _variables(rank, processes, port)
            started.append(context.Process(target=_run_script, args=(words, sys.path, environment, output)))
        for process in started:
            process.start()
        for process in started:
            process.join(seconds)
        for process in started:
            process.kill()
        codes = [process.exitcode for process in started]
        said = "\n".join(out.read_text() for out in outputs if out.exists())
    assert codes == [0] * processes, f"exit codes {codes}\n{said}"


def _variables(rank: int, processes: int, port: int) -> dict[str, str]:
    every = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    return every | {name: str(number) for name, number in numbers.items()}


def _run_script(words: list[str], path: list[str], environment: dict[str, str], output: Path) -> None:
    """In a process of its own: what `python SCRIPT ...` does, its output to a file."""
    os.environ.clear()
    os.environ.update(environment)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv, sys.path[:] = words, [str(Path(words[0]).parent), *path]
    runpy.run_path(words[0], run_name="__main__")
