"""Shared by the pages of all analyses: thumbnails, matplotlib figures as reproducible SVG, the page itself."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from isda import __version__
from isda._utils.files import write_text
from isda.report.markup import Markup, document, join, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 64
"""Pixels of a side up to which an image is shown as it is."""
SIDE = 112
"""Of what is made of larger ones, twice the size at which pages show it."""
GAP = 2


def thumbnail(image: Tensor) -> Tensor:
    """An image of any size and number of channels as colours: uint8 (3, H, W).

    Args:
        image: uint8 (C, H, W); of channels that are neither grey nor colour the first are shown.

    Example:
        >>> thumbnail(torch.zeros(1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([3, 8, 8])
        >>> thumbnail(torch.zeros(3, 375, 500, dtype=torch.uint8)).shape
        torch.Size([3, 112, 112])
    """
    image = image.cpu()
    image = (image[:3] if image.shape[0] >= 3 else image[:1]).expand(3, -1, -1)
    height, width = image.shape[1:]
    if max(height, width) <= LARGEST:
        return image
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[None, :, top : top + side, left : left + side].float()
    small = F.interpolate(square, (SIDE, SIDE), mode="bilinear", antialias=True)
    return small[0].round().clamp(0, 255).to(torch.uint8)


def strip(images: Sequence[Tensor] | Tensor, columns: int) -> Tensor:
    """Images beside each other in rows of ``columns``: uint8 (4, H, W), where nothing is there transparent."""
    cells = [thumbnail(image) for image in images]
    # Images of a folder may differ in size.
    height, width = (max(cell.shape[side] for cell in cells) for side in (1, 2))
    rows = -(-len(cells) // columns)
    sheet = torch.zeros(4, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, dtype=torch.uint8)
    for number, cell in enumerate(cells):
        top, left = (number // columns) * (height + GAP), (number % columns) * (width + GAP)
        sheet[:3, top : top + cell.shape[1], left : left + cell.shape[2]] = cell
        sheet[3, top : top + cell.shape[1], left : left + cell.shape[2]] = 255
    return sheet


def as_file(image: Tensor) -> bytes:
    """A uint8 image (3, H, W) or (4, H, W) as a PNG file; of photographs, which are larger, as a WebP file.

    Example:
        >>> as_file(torch.zeros(3, 8, 8, dtype=torch.uint8))[1:4]
        b'PNG'
    """
    from PIL import Image

    written = io.BytesIO()
    photographs = image.shape[1] > LARGEST and image.shape[2] > LARGEST
    drawn = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    if photographs:
        drawn.save(written, "webp", quality=85)
    else:
        drawn.save(written, "png", optimize=True)
    return written.getvalue()


COLOURS = ("#63686f", "#1a55d9", "#d65d0e", "#2b8a3e", "#9c36b5", "#c92a2a", "#0b7285", "#e67700", "#5c940d", "#862e9c")
"""The first is the baseline's, as in reports; told apart by markers and dashes too."""


def new_figure(panels: int = 1, columns: int = 2, size: tuple[float, float] = (4.6, 3.4)) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of ``columns``, each of ``size`` inches."""
    from matplotlib.figure import Figure

    across = min(panels, columns)
    down = -(-panels // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    axes = [figure.add_subplot(down, across, place + 1) for place in range(panels)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    return figure, axes


def drawn(figure: Figure, caption: str) -> Markup:
    """The figure as an element of a page, on white: its colours are made for that."""
    import matplotlib

    buffer = io.BytesIO()
    # Without these, every drawing of the same figure has other ids and another date.
    with matplotlib.rc_context({"svg.hashsalt": "isda", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode()
    picture = Markup(text[text.index("<svg") :].replace("<svg ", '<svg class="drawn" role="img" ', 1))
    return tag("figure", picture, tag("figcaption", caption))


def write_page(
    path: Path, kicker: str, title: str, lede: str, parts: Iterable[str], command: str, style: str = ""
) -> None:
    """Write one self-contained page: a heading, what it shows, the command that made it; ``style`` is further CSS."""
    made = join(["Made by ", tag("code", command), f" with isda {__version__}."])
    header = tag("header", tag("p", kicker, class_="kicker"), tag("h1", title), tag("p", lede, class_="lede"))
    style = f".drawn {{ background: #fff; max-width: 100%; height: auto; }} {style}"
    text = document(title, header, tag("main", *parts), tag("footer", tag("p", made)), style=style)
    write_text(path, text)
