"""As a script: FOLDER CPUS. A Ray cluster of one machine, its files in a folder, until the standard input ends."""

from __future__ import annotations

import logging
import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray

if __name__ == "__main__":
    ray.init(
        "local",
        num_cpus=int(sys.argv[2]),
        include_dashboard=False,
        object_store_memory=80 << 20,
        _temp_dir=sys.argv[1],
        logging_level=logging.ERROR,
    )
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
    ray.shutdown()
