"""The command ``isda generate sample``."""

from pathlib import Path

import tyro

__all__ = ["sample"]


def sample(
    run: tyro.conf.Positional[Path],
    *,
    out: Path = Path("samples.png"),
    columns: int = 10,
    seed: int = 0,
    npz: Path | None = None,
    per_class: int = 100,
    device: str = "auto",
) -> None:
    """Make images with a trained generator: a PNG with a row for each class, perhaps an .npz of many.

    Args:
        run: a run folder.
        out: the PNG file.
        columns: images in each row of it, at most 100.
        seed: of the images.
        npz: also write uint8 images (N, H, W, C), their labels and the names of the classes to this file.
        per_class: images of each class in it.
        device: auto, cpu, cuda or cuda:1.
    """
    import numpy as np
    import torch

    from isda.engine.processes import join_processes
    from isda.files import replacing
    from isda.generative.pictures import sample_grid
    from isda.generators import load_generator, make_images
    from isda.plain_text import harmless
    from isda.seeds import generator

    for name, value in (("columns", columns), ("per_class", per_class)):
        if not 1 <= value <= (100 if name == "columns" else 1_000_000):
            raise ValueError(f"{name} must be from 1 to {100 if name == 'columns' else 1_000_000}, got {value}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    made = load_generator(run)
    with join_processes(device) as processes:
        network = made.network.to(processes.device)
        with replacing(out) as unfinished:
            unfinished.write_bytes(sample_grid(network, made.classes, seed, columns))
        print(harmless(f"{out}: {len(made.classes)} classes x {columns} images by {made.method}"))
        if npz is None:
            return
        labels = torch.arange(len(made.classes)).repeat(per_class)
        images = make_images(network, labels, generator(seed)).permute(0, 2, 3, 1).cpu().numpy()
        with replacing(npz) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, images=images, labels=labels.numpy(), classes=np.array(made.classes))
        print(harmless(f"{npz}: {len(labels)} images"))
