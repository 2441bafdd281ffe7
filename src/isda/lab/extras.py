"""Optional dependencies: which extra installs a library, and the error for a missing one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

DISTRIBUTION = "isda-torch"

_LAB = "lab"
_TABLES = "tables"
_BRINGS = {
    "filelock": ("filelock", _LAB),
    "jinja2": ("Jinja", _LAB),
    "matplotlib": ("Matplotlib", _LAB),
    "PIL": ("Pillow", _LAB),
    "pycocotools": ("pycocotools", _LAB),
    "rich": ("rich", _LAB),
    "safetensors": ("safetensors", _LAB),
    "scipy": ("SciPy", _LAB),
    "sklearn": ("scikit-learn", _LAB),
    "tensorboard": ("TensorBoard", _LAB),
    "timm": ("timm", _LAB),
    "torchvision": ("torchvision", _LAB),
    "tyro": ("tyro", _LAB),
    "onnx": ("ONNX", "onnx"),
    "onnxscript": ("ONNX Script", "onnx"),
    "ray": ("Ray", "ray"),
    "submitit": ("submitit", "slurm"),
    "pandas": ("pandas", _TABLES),
    "pyarrow": ("PyArrow", _TABLES),
    "skops": ("skops", _TABLES),
    "skrub": ("skrub", _TABLES),
}
"""By the name that is imported: what people call the library, and the extra of pyproject.toml that brings it."""


class MissingExtra(ModuleNotFoundError):
    """A library that an extra brings is not installed; the message says what needs it, and the command."""


def install_command(extra: str) -> str:
    """The command that installs isda with an extra, from where the installed isda came.

    The distribution need not be on an index: isda may have been installed from a clone, a repository or a file, which
    pip records (``direct_url.json``, PEP 610).
    """
    return f"pip install {requirement(extra, _origin())}"


@cache
def _origin() -> dict[str, Any]:
    """The record of pip about the source of the installed distribution; empty for an index."""
    try:
        record = distribution(DISTRIBUTION).read_text("direct_url.json")
        return dict(json.loads(record)) if record else {}
    except (PackageNotFoundError, ValueError):
        root = Path(__file__).resolve().parents[3]
        # Not installed, but imported from a clone.
        return {"url": root.as_uri(), "dir_info": {"editable": True}} if (root / "pyproject.toml").is_file() else {}


def requirement(extra: str, origin: Mapping[str, Any]) -> str:
    """What to pass to ``pip install`` for isda with an extra.

    Args:
        extra: of pyproject.toml.
        origin: content of ``direct_url.json``; empty for a distribution from an index.

    Example:
        >>> print(requirement("lab", {"url": "file:///clones/isda", "dir_info": {"editable": True}}))
        -e "/clones/isda[lab]"
        >>> repository = {"url": "https://example.org/isda.git", "vcs_info": {"vcs": "git", "commit_id": "1f2e3d"}}
        >>> print(requirement("lab", repository))
        "isda-torch[lab] @ git+https://example.org/isda.git@1f2e3d"
        >>> print(requirement("lab", {}))
        "isda-torch[lab]"
    """
    url, name = origin.get("url", ""), f"{DISTRIBUTION}[{extra}]"
    if "dir_info" in origin:
        folder = url2pathname(urlparse(url).path)
        return f'{"-e " if origin["dir_info"].get("editable") else ""}"{folder}[{extra}]"'
    if "vcs_info" in origin:
        version = origin["vcs_info"]
        return f'"{name} @ {version["vcs"]}+{url}@{version["commit_id"]}"'
    return f'"{name} @ {url}"' if url else f'"{name}"'


def missing_message(module: str) -> str:
    """That a library is not installed, and the command that brings it.

    Args:
        module: name that is imported: one that an extra brings, or a module within it.

    Example:
        >>> missing_message("sklearn.base")  # doctest: +ELLIPSIS
        'scikit-learn, which is not installed: pip install ...[lab]"'
    """
    called, extra = _BRINGS[module.partition(".")[0]]
    return f"{called}, which is not installed: {install_command(extra)}"


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Imports, or a whole function, that need libraries of an extra: without one, the error names the extra.

    Args:
        what: that cannot be used without them, as the first words of a sentence.

    Raises:
        MissingExtra: in place of the error that says only that there is no such module.

    Example:
        >>> with needed_by("isda train"):  # doctest: +ELLIPSIS
        ...     raise ModuleNotFoundError("No module named 'timm'", name="timm")
        Traceback (most recent call last):
        isda.lab.extras.MissingExtra: isda train needs timm, which is not installed: pip install ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A nested needed_by has raised it already; modules that no extra brings keep their own error.
        if isinstance(error, MissingExtra) or (error.name or "").partition(".")[0] not in _BRINGS:
            raise
        raise MissingExtra(f"{what} needs {missing_message(str(error.name))}", name=error.name) from None
