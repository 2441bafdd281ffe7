"""The table of docs/choosing.md that says what statistics take: python website/memory_table.py writes it.

The models are made on torch's meta device, which has shapes and no memory, and their tensors are added up.
"""

from __future__ import annotations

import re
from pathlib import Path

from isda import covariance
from isda.covariance.memory import auto_name

__all__ = ["PAGE", "size_text", "table", "written"]

PAGE = Path(__file__).parent.parent / "docs" / "choosing.md"
SIZES = {
    "ResNet on CIFAR-10": (10, 64),
    "ResNet on CIFAR-100": (100, 64),
    "Wide-ResNet-28-10 on CIFAR-100": (100, 640),
    "PSPNet on Cityscapes": (19, 512),
    "ResNet-18 on ImageNet": (1000, 512),
    "ResNet-50 on ImageNet": (1000, 2048),
}
MODELS = ("full", "low_rank", "diagonal", "shared", "identity")


def table() -> str:
    """The table, as Markdown."""
    heads = (*MODELS, "auto on a CPU", "auto on a GPU")
    lines = [f"| | C | A | {' | '.join(heads)} |", f"|---|{'---:|' * (2 + len(heads))}"]
    for name, (classes, features) in SIZES.items():
        cells = [size_text(_bytes(model, classes, features)) for model in MODELS]
        cells += [auto_name(classes, features, device) for device in ("cpu", "cuda")]
        lines.append(f"| {name} | {classes} | {features} | {' | '.join(cells)} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """The text of the page with the table in its place."""
    place = re.compile(r"(<!-- memory: [^>]*-->\n).*?(<!-- end of memory -->)", re.DOTALL)
    return place.sub(lambda found: f"{found[1]}\n{table()}\n\n{found[2]}", text)


def _bytes(model: str, classes: int, features: int) -> int:
    made = covariance.create(model, classes, features, device="meta")
    return sum(tensor.nbytes for tensor in made.state_dict().values())


def size_text(count: int) -> str:
    """A number of bytes in its largest unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
