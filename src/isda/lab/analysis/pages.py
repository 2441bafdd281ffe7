"""Parts of all analysis pages: thumbnails, matplotlib figures as reproducible SVG, command lines, the page itself."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from isda import __version__
from isda.lab.analysis.markup import Markup, document, join, tag
from isda.lab.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 64
"""Largest side in pixels of an image that is not resized."""
SIDE = 112
"""Side of the thumbnail of a larger image, twice the size at which pages show it."""
GAP = 2


def thumbnail(image: Tensor) -> Tensor:
    """An RGB thumbnail of an image of any size and number of channels: uint8 (3, H, W).

    Args:
        image: uint8 (C, H, W); of other than 1 or 3 channels, the first ones are shown.

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


def image_strip(images: Sequence[Tensor] | Tensor, columns: int) -> Tensor:
    """Thumbnails in rows of ``columns``: uint8 (4, H, W), transparent where there is none."""
    cells = [thumbnail(image) for image in images]  # of different sizes, if the images are
    height, width = (max(cell.shape[side] for cell in cells) for side in (1, 2))
    rows = -(-len(cells) // columns)
    sheet = torch.zeros(4, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, dtype=torch.uint8)
    for number, cell in enumerate(cells):
        top, left = (number // columns) * (height + GAP), (number % columns) * (width + GAP)
        sheet[:3, top : top + cell.shape[1], left : left + cell.shape[2]] = cell
        sheet[3, top : top + cell.shape[1], left : left + cell.shape[2]] = 255
    return sheet


def encode_image(image: Tensor, *, exact: bool = False) -> bytes:
    """A uint8 image (3, H, W) or (4, H, W) as a PNG file, or as a WebP file if it is larger than LARGEST.

    Args:
        image: the pixels.
        exact: a PNG file of any size.

    Example:
        >>> encode_image(torch.zeros(3, 8, 8, dtype=torch.uint8))[1:4]
        b'PNG'
    """
    from PIL import Image

    buffer = io.BytesIO()
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    if min(image.shape[1:]) > LARGEST and not exact:
        picture.save(buffer, "webp", quality=85)
    else:
        picture.save(buffer, "png", optimize=True)
    return buffer.getvalue()


COLOURS = ("#63686f", "#1a55d9", "#d65d0e", "#2b8a3e", "#9c36b5", "#c92a2a", "#0b7285", "#e67700", "#5c940d", "#862e9c")
"""The first is the baseline's, as in reports; markers and dashes differ as well."""


def new_figure(panels: int = 1, columns: int = 2, size: tuple[float, float] = (4.6, 3.4)) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of ``columns``, each of ``size`` inches."""
    from matplotlib.figure import Figure

    across = min(panels, columns)
    down = -(-panels // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    axes = [figure.add_subplot(down, across, index + 1) for index in range(panels)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    return figure, axes


def svg_figure(figure: Figure, caption: str) -> Markup:
    """The figure as SVG on a white background, with its caption."""
    import matplotlib

    buffer = io.BytesIO()
    # Without these settings, ids and date would differ between drawings of the same figure.
    with matplotlib.rc_context({"svg.hashsalt": "isda", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode()
    picture = Markup(text[text.index("<svg") :].replace("<svg ", '<svg class="drawn" role="img" ', 1))
    return tag("figure", picture, tag("figcaption", caption))


def command_line(command: str, *paths: Path, **options: object) -> str:
    """The command line of an analysis; options that are None or empty are omitted.

    Example:
        >>> command_line("map", Path("runs/a b"), perplexity=30.0, classes=["cat", "dog"], data_root=None)
        "isda map 'runs/a b' --perplexity 30 --classes cat dog"
    """
    words = ["isda", command, *(path.as_posix() for path in paths)]
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        words += [f"--{name.replace('_', '-')}", *map(_word, values)] if values else []
    return shlex.join(words)


def _word(value: object) -> str:
    if isinstance(value, Path):
        return value.as_posix()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def write_page(
    path: Path,
    kicker: str,
    title: str,
    lede: str,
    parts: Iterable[str],
    command: str,
    style: str = "",
    intro: Iterable[str] = (),
) -> None:
    """Write one self-contained HTML page.

    Args:
        path: of the file.
        kicker: the name of the command, above the heading.
        title: the heading.
        lede: the first paragraph.
        parts: the content.
        command: the command line that made the page.
        style: further CSS.
        intro: further elements of the header.
    """
    header = tag("header", tag("p", kicker, class_="kicker"), tag("h1", title), tag("p", lede, class_="lede"), *intro)
    footer = tag("footer", tag("p", join(["Made by ", tag("code", command), f" with isda {__version__}."])))
    style = f".drawn {{ background: #fff; max-width: 100%; height: auto; }} {style}"
    write_text(path, document(title, header, tag("main", *parts), footer, style=style))
