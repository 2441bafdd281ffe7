"""What pixels are normalised with: channel statistics, each image's own, or ZCA whitening, kept with the run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from isda.data import DataSet, ZCAWhitening, normalise_per_image, zca_whitening
from isda.data.augment import Draws, Normalize, Transform
from isda.engine.processes import Processes
from isda.semi_supervised.config import SemiConfig

__all__ = ["WHITENING_FILE", "normalised", "normaliser_for", "whitening_for"]

WHITENING_FILE = "whitening.safetensors"
"""In the folder of a run that whitens: the run can be used without the training data, and resumed to the bit."""

# Damps the directions that hold little but the rounding of pixels to 8 bits, see isda.data.ZCAWhitening; this much in
# Laine & Aila's code, for pixels in 0..1 as well.
EPS = 1e-5

# Bounds the floating-point copy of uint8 images.
CHUNK = 1000


def whitening_for(
    config: SemiConfig, data: DataSet, folder: Path, processes: Processes, data_root: Path | None = None
) -> ZCAWhitening | None:
    """The whitening of a run: the copy in its folder, else that of the data set's training images; None if it has none.

    Whitening is a property of the data set, as its channel statistics are: fitted to all training images, whichever of
    them a run may see, and kept under the data root for other runs.
    """
    if config.normalisation != "zca":
        return None
    if (folder / WHITENING_FILE).is_file():
        return ZCAWhitening.read(folder / WHITENING_FILE, config.data_digest).to(processes.device)
    # The first process fits, the others find its file; where none could be written, they still get its numbers.
    if not processes.first:
        processes.wait()
    fitted = zca_whitening(data, data_root, EPS)
    if processes.first:
        processes.wait()
    fitted.to(processes.device)
    processes.share_buffers(fitted)
    return fitted


def normaliser_for(config: SemiConfig, whiten: ZCAWhitening | None = None) -> Transform:
    """The last step of a pipeline, from pixels to what the network sees."""
    if config.normalisation == "zca":
        if whiten is None:
            raise ValueError("whiten must be given for normalisation='zca', got None")
        return whiten
    if config.normalisation == "per-image":
        return _per_image
    return Normalize(config.mean, config.std)


def normalised(images: Tensor, normalise: Transform, device: torch.device) -> Tensor:
    """(N, C, H, W) float32 on a device, worked through by chunks."""
    result = torch.empty(images.shape, dtype=torch.float32, device=device)
    for part, pixels in zip(result.split(CHUNK), images.split(CHUNK), strict=True):
        part.copy_(normalise(pixels.to(device)))
    return result


def _per_image(images: Tensor, draws: Draws | None = None) -> Tensor:
    return normalise_per_image(images)
