"""The data set that a run was made with, as long as it is still the same."""

from __future__ import annotations

from pathlib import Path

from isda.classification.config import Config
from isda.data import DataSet, load
from isda.engine.folder.formats import FORMAT

__all__ = ["run_data"]


def run_data(config: Config, data_root: Path | None = None) -> DataSet:
    """Load what the configuration of a run names.

    Raises:
        ValueError: it has changed, or the run is of a version that drew its images in another way.
    """
    if config.format != FORMAT:
        raise ValueError(
            f"the run is of isda {config.version} (format {config.format}), and which images it has learnt from or was "
            "judged by is not known to this version"
        )
    data = load(config.asked.get("data") or config.data, data_root)
    if data.digest != config.data_digest:
        raise ValueError(f"{data.name} must be the data set of the run, it has changed since the run was started")
    return data
