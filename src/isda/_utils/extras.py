"""Optional dependencies: which extra installs a library, and the error for a missing one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_LAB = "lab"
_INTEGRATIONS = "integrations"
_BRINGS = {
    "matplotlib": ("Matplotlib", _LAB),
    "optuna": ("Optuna", _LAB),
    "PIL": ("Pillow", _LAB),
    "pycocotools": ("pycocotools", _LAB),
    "rich": ("rich", _LAB),
    "safetensors": ("safetensors", _LAB),
    "scipy": ("SciPy", _LAB),
    "sklearn": ("scikit-learn", _LAB),
    "starlette": ("Starlette", _LAB),
    "tensorboard": ("TensorBoard", _LAB),
    "timm": ("timm", _LAB),
    "torchvision": ("torchvision", _LAB),
    "tyro": ("tyro", _LAB),
    "uvicorn": ("Uvicorn", _LAB),
    "ray": ("Ray", "ray"),
    "umap": ("UMAP", "umap"),
    "accelerate": ("Accelerate", _INTEGRATIONS),
    "fastai": ("fastai", _INTEGRATIONS),
    "lightning": ("Lightning", _INTEGRATIONS),
    "peft": ("PEFT", _INTEGRATIONS),
    "segmentation_models_pytorch": ("segmentation_models_pytorch", _INTEGRATIONS),
    "skorch": ("skorch", _INTEGRATIONS),
    "transformers": ("transformers", _INTEGRATIONS),
}
"""By the name that is imported: what people call the library, and the extra of pyproject.toml that brings it."""


class MissingExtra(ModuleNotFoundError):
    """A library that an extra brings is not installed; the message says what needs it, and the command."""


def install_command(extra: str) -> str:
    """The command that installs isda with an extra.

    Example:
        >>> install_command("lab")
        "pip install 'isda-torch[lab]'"
    """
    return f"pip install 'isda-torch[{extra}]'"


def missing_message(module: str) -> str:
    """That a library is not installed, and the command that brings it.

    Args:
        module: name that is imported: one that an extra brings, or a module within it.

    Example:
        >>> missing_message("sklearn.base")
        "scikit-learn, which is not installed: pip install 'isda-torch[lab]'"
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
        >>> with needed_by("isda explore"):  # doctest: +ELLIPSIS
        ...     raise ModuleNotFoundError("No module named 'starlette'", name="starlette")
        Traceback (most recent call last):
        isda._utils.extras.MissingExtra: isda explore needs Starlette, which is not installed: pip install ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # A nested needed_by has raised it already; modules that no extra brings keep their own error.
        if isinstance(error, MissingExtra) or (error.name or "").partition(".")[0] not in _BRINGS:
            raise
        raise MissingExtra(f"{what} needs {missing_message(str(error.name))}", name=error.name) from None
