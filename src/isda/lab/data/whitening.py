"""ZCA whitening: pixels become uncorrelated with unit variance and still look like images (Bell & Sejnowski, 1997)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isda.lab.data.catalogue import data_root
from isda.lab.data.dataset import DataSet
from isda.lab.data.normalise import as_float
from isda.lab.files import atomic_write, check_regular_file

if TYPE_CHECKING:
    from isda.lab.data.augment import Draws

# Bounds the floating-point copy of uint8 images: 2048 CIFAR images are 50 MB in float64.
CHUNK = 2048


class ZCAWhitening(nn.Module):
    """z = W (x - mean) with W = U diag(1 / sqrt(s + eps)) U', where U diag(s) U' is the pixels' covariance.

    Pixels are in 0..1. `eps` damps directions of little variance: the whitened variance along a direction is
    s / (s + eps). CIFAR-10's smallest s is 1.6e-6, hardly more than the 1.3e-6 of rounding to 8 bits; to damp that
    noise, pass 1e-6.

    Directions in which the fitted images do not vary at all (fewer images than pixels, constant borders) are left as
    they are, W = 1: an unseen image is not blown up along them.

    It is a transform as those of `isda.lab.data.augment` are, for the end of a pipeline: `zca(images, draws)`.
    ``mean`` is (D,), ``whitening`` (D, D), and ``rank`` the number of directions that vary.

    Example:
        >>> images = torch.randint(0, 256, (500, 1, 4, 4), dtype=torch.uint8)
        >>> zca = ZCAWhitening.fit(images)
        >>> whitened = zca(images)
        >>> torch.allclose(torch.cov(whitened.flatten(1).T, correction=0), torch.eye(16), atol=1e-3)
        True
    """

    mean: Tensor
    whitening: Tensor

    def __init__(self, mean: Tensor, whitening: Tensor, image_shape: tuple[int, ...], rank: int, eps: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("whitening", whitening)
        self.image_shape, self.rank, self.eps = image_shape, rank, eps

    @classmethod
    def fit(cls, images: Tensor, eps: float = 0.0) -> ZCAWhitening:
        """Fit to images (N, C, H, W), uint8 or floating point in 0..1, in float64 on the host.

        float32 would not do: its rounding of CIFAR's largest variance (55) exceeds the smallest (1.6e-6).
        """
        if eps < 0:
            raise ValueError(f"eps must be at least 0, got {eps}")
        if images.dim() != 4 or len(images) < 2:
            raise ValueError(f"images must have the shape (N, C, H, W) with N of at least 2, got {tuple(images.shape)}")
        chunks = images.flatten(1).cpu().split(CHUNK)
        dimension = chunks[0].shape[1]
        mean = torch.stack([_wide(chunk).sum(0) for chunk in chunks]).sum(0) / len(images)
        covariance = torch.zeros(dimension, dimension, dtype=torch.float64)
        for chunk in chunks:
            centred = _wide(chunk) - mean
            covariance.addmm_(centred.T, centred)
        variances, directions = torch.linalg.eigh(covariance / len(images))
        varies = variances > variances[-1] * dimension * torch.finfo(torch.float64).eps
        scale = torch.where(varies, variances.clamp_min(0) + eps, 1.0).sqrt()
        whitening = (directions / scale @ directions.T).float()
        return cls(mean.float(), whitening, tuple(images.shape[1:]), int(varies.sum()), eps).to(images.device)

    def forward(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """Whiten images (N, C, H, W), uint8 or floating point in 0..1; nothing is drawn."""
        self._check_shape(images)
        dtype = self.mean.dtype
        chunks = [(as_float(x, dtype).to(dtype) - self.mean) @ self.whitening for x in images.flatten(1).split(CHUNK)]
        return torch.cat(chunks).unflatten(1, self.image_shape)

    def save(self, path: Path, of: str = "") -> None:
        """Write a safetensors file; it is never left incomplete. ``of`` names the data set, which `read` compares."""
        from safetensors.torch import save_file

        settings = {"image_shape": self.image_shape, "rank": self.rank, "eps": self.eps, "of": of}
        tensors = {name: buffer.cpu().contiguous() for name, buffer in self.named_buffers()}
        with atomic_write(path) as unfinished:
            save_file(tensors, unfinished, metadata={"whitening": json.dumps(settings)})

    @classmethod
    def read(cls, path: Path, of: str = "") -> ZCAWhitening:
        """Read a file of `save`, to the CPU.

        Raises:
            ValueError: the file is missing, damaged, or holds something else, or it is not ``of`` this data set.
        """
        from safetensors import SafetensorError, safe_open

        check_regular_file(path)
        try:
            with safe_open(path, "pt") as stored:
                settings = json.loads((stored.metadata() or {})["whitening"])
                mean, whitening = stored.get_tensor("mean"), stored.get_tensor("whitening")
            if of and settings["of"] not in ("", of):
                raise ValueError("it is of another data set")
            return cls(mean, whitening, tuple(settings["image_shape"]), settings["rank"], settings["eps"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} does not hold a whitening: {error}") from error

    def _check_shape(self, images: Tensor) -> None:
        if images.shape[1:] != self.image_shape:
            raise ValueError(f"images must have the shape (N, *{self.image_shape}), got {tuple(images.shape)}")


def zca_whitening(data: DataSet, root: str | os.PathLike[str] | None = None, eps: float = 0.0) -> ZCAWhitening:
    """The whitening of a data set's training images, fitted once and cached in `root`/zca.

    The name of the file contains the name of the set, `eps` and a digest of the images.
    """
    if not isinstance(data.x_train, Tensor):
        raise ValueError(f"data must hold images in memory to be whitened, got {data.name}, decoded on access")
    digest = hashlib.sha256(repr(tuple(data.x_train.shape)).encode())
    for chunk in data.x_train.split(CHUNK):
        digest.update(chunk.cpu().contiguous().numpy().data)
    safe = re.sub(r"[^\w.-]+", "_", data.name)
    path = data_root(root) / "zca" / f"{safe}-eps{eps:g}-{digest.hexdigest()[:16]}.safetensors"
    try:
        whitening = ZCAWhitening.read(path)
    except ValueError:
        # Missing or damaged.
        whitening = ZCAWhitening.fit(data.x_train, eps)
        try:
            whitening.save(path)
        except OSError as error:
            # Data roots are often read-only.
            warnings.warn(f"the whitening is not kept for the next run: {error}", stacklevel=2)
    return whitening.to(data.x_train.device)


def _wide(pixels: Tensor) -> Tensor:
    return as_float(pixels, torch.float64).double()
