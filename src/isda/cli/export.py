"""The command ``isda export``."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

__all__ = ["export"]


def export(
    run: tyro.conf.Positional[Path],
    *,
    library: Annotated[Literal["torchvision", "timm", "mmdetection"], tyro.conf.arg(name="for")] = "torchvision",
    out: Path,
) -> None:
    """Write a trained classifier under the names that torchvision, timm or MMDetection load.

    ``isda export runs/mine --for mmdetection --out resnet50-isda.pth``

    Args:
        run: a run folder of `isda train` with one of the ImageNet networks, or with timm:NAME.
        library: whose names; timm's for timm:NAME.
        out: the file; .safetensors, or else as torch.save writes it.
    """
    from isda.networks.export import export as write
    from isda.plain_text import harmless
    from isda.train import load_trained

    trained = load_trained(run)
    write(trained.network, trained.config.network, library, out, trained.config.network_options)
    print(harmless(f"{trained.config.network} of {run} under the names of {library}: {out}"))
