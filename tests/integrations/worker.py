"""One of several processes that train by each library; as a script: FOLDER, where it leaves what it ended with."""

import sys
from pathlib import Path

import accelerate_runs
import huggingface_runs
import torch
import torch.distributed as dist

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ended = {
        "huggingface": huggingface_runs.whole_and_resumed(folder / "huggingface"),
        "accelerate": accelerate_runs.whole_and_resumed(folder / "accelerate"),
    }
    torch.save(ended, folder / f"rank-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
