"""The command ``isda embed``."""

from pathlib import Path

from isda.cli.options import JsonFile

__all__ = ["embed"]


def embed(
    *,
    data: str,
    network: str,
    out: Path,
    pretrained: str | None = None,
    image_size: int | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    train: int | None = None,
    test: int | None = None,
    batch_size: int = 64,
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Write the features that a network makes of the images of a data set to a file, for `isda classify`.

    ``isda embed --data folder:photos --network timm:resnet50 --pretrained timm --out photos.npz``

    Args:
        data: a data set, as in `isda train`: a name, a folder of class folders, or an .npz file of images.
        network: timm:NAME, a name of `isda networks`, or the folder of a finished run.
        out: the file for features, labels, class names and where they come from.
        pretrained: a file of weights for the network, or "timm" for those that timm fetches. Random weights if left
            out; a run has its own.
        image_size: resize images to this height and width; by default to what the network was trained on.
        mean: of pixels in 0..1, one value or one per channel; by default the network's own, else the data set's.
        std: likewise.
        train: embed this many training images, equally many of each class; all by default.
        test: this many test images, likewise.
        batch_size: images that the network sees at once.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write what was made to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    import sys
    import time

    from isda.cli.output import show
    from isda.cli.terminal import tracked
    from isda.data import load
    from isda.embeddings.backbones import find_backbone
    from isda.embeddings.embedding import embed as embedded
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    if out.suffix != ".npz":
        raise ValueError(f"out must be the name of an .npz file, got {out}")
    images = load(data, data_root)
    backbone = find_backbone(network, images, pretrained, image_size=image_size, mean=mean or None, std=std or None)
    if str(backbone.provenance.get("weights", "")).startswith("random"):
        print("isda: the network has random weights; --pretrained gives it trained ones", file=sys.stderr)
    began = time.monotonic()
    with join_processes(device) as processes:
        made = embedded(
            images,
            backbone,
            processes.device,
            train=train,
            test=test,
            batch_size=batch_size,
            progress=lambda batches, what: tracked(batches, what, len(batches)),
        )
    seconds = time.monotonic() - began
    made.write(out)
    record = {
        "out": str(out),
        "features": made.x_train.shape[1],
        "train": len(made.y_train),
        "test": len(made.y_test),
        "classes": len(made.classes),
        "seconds": seconds,
        "provenance": made.provenance,
    }
    told = (
        f"{out}: {len(made.y_train)} training and {len(made.y_test)} test images of {images.name}, "
        f"{made.x_train.shape[1]} features each by {network}, {len(made.classes)} classes, {seconds:.1f} s"
    )
    show(record, json, lambda: print(harmless(told)))
