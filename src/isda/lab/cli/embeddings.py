"""The commands ``isda embed`` and ``isda classify``."""

from pathlib import Path
from typing import Any

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
        out: the .npz file for features, labels, class names and where they come from.
        pretrained: a file of weights, or "timm" for those that timm fetches; random weights by default.
        image_size: resize images to this height and width.
        mean: of pixels in 0..1, one value or one per channel.
        std: likewise.
        train: embed this many training images, equally many of each class; all by default.
        test: this many test images, likewise.
        batch_size: images per forward pass.
    """
    import sys

    from isda.lab.cli.output import print_escaped, show, track_progress
    from isda.lab.data import load
    from isda.lab.embeddings import embed as compute
    from isda.lab.embeddings import find_backbone, write_npz
    from isda.lab.engine.processes import join_processes

    if out.suffix != ".npz":
        raise ValueError(f"out must be the name of an .npz file, got {out}")
    images = load(data, common.data_root)
    backbone = find_backbone(network, images, pretrained, image_size=image_size, mean=mean, std=std)
    if str(backbone.provenance.get("weights", "")).startswith("random"):
        print("isda: the network has random weights; --pretrained gives it trained ones", file=sys.stderr)
    if backbone.provenance.get("source_data") == images.name:
        print(
            f"isda: the run was trained on images of {images.name}: their features are separated better than those of "
            "new images",
            file=sys.stderr,
        )
    with join_processes(common.device) as processes:
        arrays = compute(
            images,
            backbone,
            processes.device,
            counts={"train": train, "test": test},
            batch_size=batch_size,
            progress=lambda batches, what: track_progress(batches, what, len(batches)),
        )
    write_npz(out, arrays)
    sizes = {"train": len(arrays["y_train"]), "test": len(arrays["y_test"]), "features": arrays["x_train"].shape[1]}
    record = {"out": str(out), **sizes, "classes": len(images.classes), "provenance": backbone.provenance}
    summary = f"{out}: {sizes['train']} training and {sizes['test']} test images, {sizes['features']} features each"
    show(record, common.json, lambda: print_escaped(summary))


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
    seed: int = 0,
    predictions: Path | None = None,
    save: Path | None = None,
    model: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Train a classifier on a table or a file of embeddings, report its accuracy, and predict unlabelled rows.

    ``isda classify table.csv --label species --save species.skops``
    ``isda classify new.csv --model species.skops --predictions answers.csv``

    Args:
        file: a table with a header line (.csv, .tsv, .parquet), or a file of embeddings (.npz).
        test: another such file, to evaluate on; by default the test part of the first, else a share of its rows.
        split: that share.
        label: the column of labels; by default "label", else the last.
        ignore: columns that are left out.
        id: columns that identify rows, repeated in the predictions; "id" is one by default.
        lambda_0: strength of the augmentation, or "auto"; 0 is logistic regression.
        C: inverse penalty, or "auto".
        covariance: within, full or diagonal.
        seed: of the split and the folds.
        predictions: write class and probability of each row without a label to this .csv; with --model of every row.
        save: write the fitted model to this .skops file.
        model: a file of --save: predict with it instead of training.
        json: a file for the result as JSON.
    """
    import warnings

    from isda.lab.extras import needed_by

    with needed_by("isda classify"):
        from isda.lab import tables

    # scikit-learn 1.8 announces other defaults of LogisticRegressionCV, whose new names older versions do not know.
    warnings.simplefilter("ignore", FutureWarning)
    from isda import ISDAClassifier
    from isda.lab.cli.output import print_escaped, show

    given = [_auto_or_number(name, word) for name, word in (("lambda_0", lambda_0), ("C", C))]
    estimator = ISDAClassifier(*given, covariance=covariance, random_state=seed)
    if not 0 < split < 1:
        raise ValueError(f"split must be between 0 and 1, got {split}")
    if model is not None:
        if test is not None or save is not None:
            raise ValueError("--model does not train: leave out --test and --save")
        fitted = tables.load_model(model)
        read = tables.read_tables(file, label, id, ignore, like=fitted.feature_names_in_)
        known = read[-1].labelled
        tested, confusion = {}, None
        if len(known.labels) and set(known.labels) <= set(fitted.classes_):
            measures, confusion = tables.judge(fitted, known.features, known.labels)
            tested = {tables.ISDA: measures}
        result = tables.Result(fitted, {}, tested, confusion, 0)
    else:
        read = tables.read_tables(file, label, id, ignore)
        if test is not None:
            column = label or str(read[0].labels.name)
            read = read[:1] + tables.read_tables(test, column, like=read[0].features.columns)[-1:]
        result = tables.classify(read[0], read[1] if len(read) > 1 else None, estimator, split, seed)
    show(_record(result), json, lambda: print_escaped(_summary(result)))
    if predictions is not None:
        tables.write_predictions(predictions, result.model, read, every=model is not None)
    if save is not None:
        tables.save_model(result.model, save)


def _auto_or_number(name: str, word: str) -> str | float:
    if word == "auto":
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f'{name} must be "auto" or a number, got {word!r}') from None


def _record(result: Any) -> dict[str, Any]:
    fitted = result.model[-1]
    settings = {
        "lambda_0": fitted.lambda_0_,
        "C": fitted.C_,
        "scale": fitted.scale_,
        "standardize": fitted.standardize_,
    }
    confusion = None if result.confusion is None else result.confusion.to_numpy().tolist()
    classes = [str(name) for name in fitted.classes_]
    measured = {"cross_validated": result.crossed, "tested": result.tested, "confusion": confusion}
    return {"rows": result.rows, "features": fitted.n_features_in_, "classes": classes, **settings, **measured}


def _summary(result: Any) -> str:
    import pandas as pd

    record = _record(result)
    lines = [
        f"{record['features']} numeric features, {len(record['classes'])} classes, {record['rows']} rows to train on"
    ]
    for title, measures in (("cross-validated", result.crossed), ("test rows", result.tested)):
        if measures:
            table = pd.DataFrame(measures).T.rename(columns={"error": "error, %", "calibration": "calibration, %"})
            lines += ["", title, table.round(3).to_string()]
    names = ("lambda_0", "C", "scale", "standardize")
    lines += ["", ", ".join(f"{name} {record[name]}" for name in names)]
    if result.confusion is not None:
        lines += ["", "confusion matrix: rows are classes, columns predictions", result.confusion.to_string()]
    return "\n".join(lines)
