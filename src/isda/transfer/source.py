"""Where a backbone comes from: a finished classification run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isda.classification.trained import Trained, load_trained
from isda.engine.folder.run_folder import RunFolder
from isda.engine.folder.seal import fingerprint

__all__ = ["Source", "load_source"]


@dataclass(frozen=True)
class Source:
    """A trained network and what identifies it. Runs on top of it are named and paired by its method and seed."""

    folder: Path
    trained: Trained
    sha256: str

    @property
    def fields(self) -> dict[str, Any]:
        """What a configuration on top of it says of it."""
        config = self.trained.config
        return {
            "network": config.network,
            "network_options": config.network_options,
            "method": config.method,
            "method_options": config.method_options,
            "seed": config.seed,
            "mean": config.mean,
            "std": config.std,
            "channels": config.channels,
            "image_size": config.image_size,
            "source": str(self.folder),
            "source_data": config.data,
            "source_sha256": self.sha256,
        }


def load_source(folder: Path) -> Source:
    """The backbone of a run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    trained = load_trained(folder)
    return Source(folder.absolute(), trained, str(fingerprint(RunFolder(folder).weights_file)["sha256"]))
