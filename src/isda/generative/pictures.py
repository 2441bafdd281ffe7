"""Pictures of generated images: a grid with a row for each class."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from isda.data import DataSet
from isda.data.contact_sheet import contact_sheet
from isda.generators import make_images
from isda.networks.generative import ImageGenerator
from isda.seeds import generator

__all__ = ["COLUMNS", "grid", "sample_grid"]

COLUMNS = 10

# Apart from the seeds of steps and epochs.
_SAMPLES = 0x73616D70


def grid(images: Tensor, labels: Tensor, classes: tuple[str, ...], columns: int = COLUMNS) -> bytes:
    """A PNG of the first images of each class, one row each; of more than 100 classes, 100 evenly spaced ones.

    Args:
        images: uint8 (N, C, H, W).
        labels: (N,) their classes; every class has at least one image.
        classes: their names.
        columns: images in a row.

    Example:
        >>> grid(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))[1:4]
        b'PNG'
    """
    from PIL import Image

    images, labels = images.cpu(), labels.cpu()
    sheet, _ = contact_sheet(DataSet("grid", images, labels, images, labels, classes), columns)
    written = io.BytesIO()
    Image.fromarray(sheet.permute(1, 2, 0).numpy()).save(written, "png", optimize=True)
    return written.getvalue()


def sample_grid(network: ImageGenerator, classes: tuple[str, ...], seed: int, columns: int = COLUMNS) -> bytes:
    """The grid of a generator's images, with latent vectors that follow from the seed."""
    labels = torch.arange(len(classes)).repeat(columns)
    return grid(make_images(network, labels, generator(seed, _SAMPLES)), labels, classes, columns)
