"""The commands ``isda embed`` and ``isda classify``."""

from pathlib import Path
from typing import Literal

import tyro

from isda.lab.cli.runtime_options import JsonFile, MeasureOptions


def embed(
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
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
) -> None:
    """Write the features that a network computes for images to a file, for `isda classify`.

    ``isda embed --data folder:photos --network timm:resnet50 --pretrained timm --out photos.npz``

    Args:
        common: data folder, device and JSON.
        data: a data set, as in `isda train`: a name, a folder of class folders, or an .npz file of images.
        network: timm:NAME, a name of `isda networks`, or the folder of a finished run.
        out: the file for features, labels, class names and where they come from.
        pretrained: a file of weights for the network, or "timm" for those that timm fetches. By default random
            weights, or those of the run.
        image_size: resize images to this height and width; by default to what the network was trained on.
        mean: of pixels in 0..1, one value or one per channel; by default the network's, else the data set's.
        std: likewise.
        train: embed this many training images, equally many of each class; all by default.
        test: this many test images, likewise.
        batch_size: images per forward pass.
    """
    import shlex
    import sys
    import time

    from isda.estimator.embeddings import embed as compute_embeddings
    from isda.estimator.embeddings import find_backbone
    from isda.lab.cli.console import print_next
    from isda.lab.cli.output import print_escaped, show, track_progress
    from isda.lab.data import load
    from isda.lab.engine.processes import join_processes

    if out.suffix != ".npz":
        raise ValueError(f"out must be the name of an .npz file, got {out}")
    images = load(data, common.data_root)
    backbone = find_backbone(network, images, pretrained, image_size=image_size, mean=mean or None, std=std or None)
    if str(backbone.provenance.get("weights", "")).startswith("random"):
        print("isda: the network has random weights; --pretrained gives it trained ones", file=sys.stderr)
    began = time.monotonic()
    with join_processes(common.device) as processes:
        embeddings = compute_embeddings(
            images,
            backbone,
            processes.device,
            train=train,
            test=test,
            batch_size=batch_size,
            progress=lambda batches, what: track_progress(batches, what, len(batches)),
        )
    seconds = time.monotonic() - began
    embeddings.write(out)
    record = {
        "out": str(out),
        "features": embeddings.x_train.shape[1],
        "train": len(embeddings.y_train),
        "test": len(embeddings.y_test),
        "classes": len(embeddings.classes),
        "seconds": seconds,
        "provenance": embeddings.provenance,
    }
    summary = (
        f"{out}: {record['train']} training and {record['test']} test images of {images.name}, "
        f"{record['features']} features each by {network}, {record['classes']} classes, {seconds:.1f} s"
    )
    show(record, common.json, lambda: print_escaped(summary))
    print_next(f"isda classify {shlex.quote(out.as_posix())}")


def classify(
    file: tyro.conf.Positional[Path],
    *,
    test: Path | None = None,
    split: float = 0.2,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    id: tuple[str, ...] = (),
    lambda_0: str = "auto",
    C: str = "auto",
    covariance: str = "within",
    bound: Literal["jensen", "tilted"] = "jensen",
    offset: str | None = None,
    seed: int = 0,
    predictions: Path | None = None,
    save: Path | None = None,
    model: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Train a classifier on rows of features, report its accuracy, and predict the rows without a label.

    ``isda classify photos.npz``
    ``isda classify table.csv --label species --save species.safetensors``
    ``isda classify new.csv --model species.safetensors --predictions answers.csv``

    A table has a column for each feature and one for the labels; rows whose label is empty are predicted. Columns of
    text are taken for categories; those that identify rows, such as id, are not features. The result is shown beside
    those of the majority class and of logistic regression, cross-validated and on the test rows.

    A file of embeddings is one that `isda embed` has written, or holds x_train, y_train and, optionally, x_test, y_test
    and classes; rows with the label -1, or with an empty name for a label, are predicted.

    Args:
        file: a file of embeddings (.npz), or a table (.csv, .tsv).
        test: another such file, to evaluate on; by default the test part of the first, else a share of its labelled
            rows. Columns of two tables are matched by name.
        split: that share, if there are no test rows.
        label: the column of labels of a table; by default the one called "label", else the last.
        ignore: columns of a table that are neither label nor feature.
        id: columns of a table that identify rows: not features, but repeated in the predictions; id, ..._id, index and
            the like are found by themselves if all of their values differ.
        lambda_0: strength of the augmentation; "auto" chooses it by cross-validation, 0 is logistic regression.
        C: of logistic regression, large for a weak penalty of large weights; "auto" chooses it likewise.
        covariance: in which directions rows are moved: one matrix "within" all classes; one for each class, "shrunk"
            towards that, "full" or "diagonal".
        bound: "jensen" (published) or "tilted" (never looser).
        offset: for classes of very different sizes, where small ones matter as much: "logit-adjustment" or "ldam".
        seed: of the split, and of the folds of the cross-validation.
        predictions: write the predicted class of each row without a label, and its probability, to this file (.csv);
            with --model of every row.
        save: write the classifier, fitted to all labelled rows but those of a separate test part, to this file
            (.safetensors).
        model: a file of --save: instead of training, evaluate and predict with this classifier.
        json: a file for the result as JSON.
    """
    from isda.estimator.classifier import ISDAClassifier
    from isda.estimator.embedding_tables import (
        apply_model,
        classify_tables,
        prediction_table,
        read_tables,
        save_model,
    )
    from isda.lab.choices import check_range
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.files import write_text

    check_range("seed", seed, 0, 2**32 - 1)
    strength, inverse = _auto_or_number("lambda_0", lambda_0), _auto_or_number("C", C)
    estimator = ISDAClassifier(strength, inverse, covariance=covariance, bound=bound, offset=offset, random_state=seed)
    if save is not None and save.suffix != ".safetensors":
        raise ValueError(f"save must be the name of a .safetensors file, got {save}")
    if model is not None:
        if test is not None or save is not None:
            raise ValueError(f"--model does not train: leave out --{'test' if test is not None else 'save'}")
        result = apply_model(model, file, label, ignore, id)
    else:
        tables = read_tables(file, test, split=split, seed=seed, label=label, ignore=ignore, ids=id)
        if predictions is not None and not any(map(len, tables.unlabelled)):
            raise ValueError(f"predictions are of rows without a label, {file} has none")
        result = classify_tables(tables, estimator, seed, use_all=save is not None)
    show(result.record(file), json, lambda: print_escaped(result.summary(file)))
    if predictions is not None:
        write_text(predictions, prediction_table(result, result.tables))
    if save is not None:
        save_model(result, save)


def _auto_or_number(name: str, word: str) -> str | float:
    if word == "auto":
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f'{name} must be "auto" or a number, got {word!r}') from None
