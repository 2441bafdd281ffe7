"""What pixels are normalised with: channel statistics, each image's own, or ZCA whitening, kept with the run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from isda.data import DataSet, normalise_per_image, zca_whitening
from isda.data.augment import Draws, Normalize, Transform
from isda.data.normalise import as_float
from isda.engine.folder.checkpoint import write_tensors
from isda.engine.processes import Processes
from isda.files import replacing
from isda.semi_supervised.config import SemiConfig

__all__ = ["WHITENING_FILE", "Whiten", "normalised", "normaliser_for", "whitening_for"]

WHITENING_FILE = "whitening.safetensors"
"""In the folder of a run that whitens: the run can be used without the training data, and resumed to the bit."""

# Damps the directions that hold little but the rounding of pixels to 8 bits, see isda.data.ZCAWhitening; this much in
# Laine & Aila's code, for pixels in 0..1 as well.
EPS = 1e-5

# Bounds the floating-point copy of uint8 images.
CHUNK = 1000


class Whiten(nn.Module):
    """z = W (x - mean) for images with pixels in 0..1, as a transform.

    Args:
        mean: (D,) of the pixels, D = channels * height * width.
        matrix: (D, D) W, which is symmetric.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("matrix", matrix)

    def forward(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) uint8 or floating point in 0..1 in, float32 out."""
        pixels = as_float(images.flatten(1))
        if pixels.shape[1:] != self.mean.shape:
            raise ValueError(f"images must have {len(self.mean)} pixels and channels, got {tuple(images.shape[1:])}")
        return ((pixels.float() - self.mean) @ self.matrix).view(images.shape)

    def save(self, path: Path) -> None:
        """Write a file that is there as a whole or not at all."""
        with replacing(path) as unfinished:
            write_tensors({"mean": self.mean, "matrix": self.matrix}, unfinished)

    @classmethod
    def read(cls, path: Path) -> Whiten:
        """What `save` wrote; a ValueError if it is damaged or missing."""
        try:
            stored = load_file(path)
            return cls(stored["mean"], stored["matrix"])
        except (OSError, SafetensorError, KeyError) as error:
            raise ValueError(f"{path} does not hold the run's whitening: {error}") from error


def whitening_for(
    config: SemiConfig, data: DataSet, folder: Path, processes: Processes, data_root: Path | None = None
) -> Whiten | None:
    """The whitening of a run: the copy in its folder, else that of the data set's training images; None if it has none.

    Whitening is a property of the data set, as its channel statistics are: fitted to all training images, whichever of
    them a run may see, and kept under the data root for other runs.
    """
    if config.normalisation != "zca":
        return None
    if (folder / WHITENING_FILE).is_file():
        return Whiten.read(folder / WHITENING_FILE).to(processes.device)
    # The first process fits, the others find its file; where none could be written, they still get its numbers.
    if not processes.first:
        processes.wait()
    fitted = zca_whitening(data, data_root, EPS)
    if processes.first:
        processes.wait()
    whiten = Whiten(fitted.mean, fitted.whitening).to(processes.device)
    processes.share_buffers(whiten)
    return whiten


def normaliser_for(config: SemiConfig, whiten: Whiten | None = None) -> Transform:
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
