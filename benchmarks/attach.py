"""Does `ISDALoss.attach(model)` work? Models of timm, torchvision, segmentation_models_pytorch and transformers.

python benchmarks/attach.py [--again] [NAME ...] writes benchmarks/results/attach.csv and attach.md. Rows that are there
are kept unless --again asks for all anew, or a name for its own. Weights are random; nothing is downloaded.

Each model is attached twice, by convention and with `sample=`. It counts as attached when `criterion(model(x), y)`
works as it stands and
- the features a and the weight W that enter the loss explain the logits: z - W a, computed here in float64 from the
  model's own output, is one and the same vector b for all rows (interpolated, where the model interpolates);
- with lambda_0 = 0 the loss is F.cross_entropy of the logits;
- the gradient of the loss reaches every parameter of the weight.
A model whose features do not explain the logits counts as wrong.
"""

from __future__ import annotations

import argparse
import csv
import textwrap
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attach_models import Sample, catalogue
from isda import ISDALoss
from isda.attach import logits_of

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("library", "model", "convention", "sample", "classes", "features", "logits", "error", "seconds", "sentence")
TOLERANCE = 1e-6
_EXPLANATION = (
    "`make bench-attach` wrote this table, of models with random weights in training mode (dropout 0). Attached means: "
    "`criterion(model(x), y)` works as it stands; the features and the weight that enter the loss explain the logits "
    "that the model made: z - W a, computed in float64 outside the library, is one vector for all rows to {:g} of the "
    "spread of z (column error); lambda_0 = 0 gives F.cross_entropy; the gradient reaches every parameter that W is "
    "made of. Wrong means that features entered which do not explain the logits."
)


class Wrong(Exception):
    """Features and weight entered a loss that do not explain its logits."""


def main() -> None:
    """Try every model that has no row yet, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="models to try again")
    parser.add_argument("--again", action="store_true", help="try all models again")
    arguments = parser.parse_args()
    known = {} if arguments.again else read_rows()
    models = list(catalogue())
    for library, name, make in models:
        key = f"{library}/{name}"
        if key not in known or name in arguments.names:
            known[key] = {"library": library, "model": name, **tried(make)}
            print(key, *(known[key][column] for column in ("convention", "sample", "error", "sentence")), flush=True)
            write_tables(models, known)  # after every row: a run that is stopped can go on
    write_tables(models, known)


def tried(make: Any) -> dict[str, str]:
    """One row of the table."""
    started = time.perf_counter()
    row = dict.fromkeys(COLUMNS[2:], "")
    sentences = []
    for way in ("convention", "sample"):
        torch.manual_seed(0)
        try:
            sample = in_float64(make())
        except Exception as error:  # a library that cannot make its own model is no fault of attach
            return {**row, "convention": "not made", "sample": "not made", "sentence": sentence_of(error)}
        try:
            row |= attached(sample, {"sample": sample.inputs} if way == "sample" else {})
            row[way] = "attached"
        except ValueError as error:
            row[way] = "refused"
            sentences.append(f"{way}: {sentence_of(error)}")
        except Exception as error:
            row[way] = "wrong" if isinstance(error, Wrong) else "failed"
            sentences.append(f"{way}: {type(error).__name__}: {sentence_of(error)}")
    return {**row, "seconds": f"{time.perf_counter() - started:.1f}", "sentence": " ".join(sentences)}


def attached(sample: Sample, how: dict[str, Any]) -> dict[str, str]:
    """What is worth saying of a model that works; an exception where a claim does not hold."""
    model, targets = sample.model.train(), sample.targets
    leave_zero(model)
    criterion = ISDALoss.attach(model, 0.5, 100, covariance="diagonal", **how)
    criterion.set_step(100)
    output = run(sample)
    loss = criterion(output, targets)
    assert criterion.recorder is not None
    found = criterion.recorder.find(logits_of(output))
    assert found is not None
    features, weight, learns = found
    error = unexplained(logits_of(output).detach(), features, weight.detach())
    if not error < TOLERANCE or learns:
        raise Wrong(f"logits differ from W a + b by {error:.1g}")
    if not loss.isfinite():
        raise Wrong("the loss is not finite")
    gradients = torch.autograd.grad(loss, list(leaves(weight)), allow_unused=True)
    if any(gradient is None for gradient in gradients):
        raise Wrong("no gradient reaches a part of the weight")
    plain = ISDALoss.attach(model, lambda_0=0, covariance="diagonal", **how)
    output = run(sample)
    torch.testing.assert_close(plain(output, targets), cross_entropy(logits_of(output), targets))
    shape = "x".join(map(str, logits_of(output).shape))
    return {
        "classes": str(criterion.num_classes),
        "features": str(criterion.feature_dim),
        "logits": shape,
        "error": f"{error:.0e}",
    }


def in_float64(sample: Sample) -> Sample:
    """The same with every number in float64, so that rounding explains nothing."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    inputs = sample.inputs
    if isinstance(inputs, dict):
        return sample._replace(model=sample.model.double(), inputs={name: wide(t) for name, t in inputs.items()})
    return sample._replace(model=sample.model.double(), inputs=tuple(wide(t) for t in inputs))


def unexplained(logits: Tensor, features: Tensor, weight: Tensor) -> float:
    """How far z - W a is from being the same vector for all rows, relative to how far z is; in float64."""
    if logits.ndim == 3:  # tokens, classes last
        logits, features = logits.movedim(-1, 1), features.movedim(-1, 1)
    product = torch.einsum("ca,na...->nc...", weight, features)
    if product.shape != logits.shape:
        # What a model interpolates with is not known here; one of the two has to fit.
        size = logits.shape[2:]
        return min(
            spread(logits - F.interpolate(product, size, mode="bilinear", align_corners=corners), logits)
            for corners in (False, True)
        )
    return spread(logits - product, logits)


def spread(residual: Tensor, logits: Tensor) -> float:
    """The deviation of the residual from its mean over rows, relative to that of the logits."""
    rows, wanted = (t.movedim(1, -1).flatten(0, -2) for t in (residual, logits))
    size = (wanted - wanted.mean(0)).norm()
    assert size > 1e-9 * wanted.norm(), "the logits of all rows are equal: nothing to explain"
    return float((rows - rows.mean(0)).norm() / size)


def run(sample: Sample) -> Any:
    """The output of the model."""
    if isinstance(sample.inputs, dict):
        return sample.model(**sample.inputs)
    return sample.model(*sample.inputs)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """What the criterion has to be at lambda_0 = 0."""
    if targets.ndim == 2:  # tokens
        logits = logits.transpose(1, 2)
    if logits.ndim == 4 and logits.shape[2:] != targets.shape[1:]:
        logits = F.interpolate(logits, targets.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(logits, targets)


def leaves(tensor: Tensor) -> set[Tensor]:
    """The parameters that a tensor is made of."""
    if tensor.grad_fn is None:
        return {tensor}
    found, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.add(node.variable)
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found


def leave_zero(model: nn.Module) -> None:
    """Classifiers that start at zero explain any logits: give them weights. Dropout would hide equal outputs: none."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            for parameter in (module.weight, module.bias):
                if parameter is not None and not parameter.detach().any():
                    nn.init.normal_(parameter, std=0.02)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


def sentence_of(error: Exception) -> str:
    """The message of an error on one line."""
    return " ".join(str(error).split())


# -- tables ------------------------------------------------------------------------------------------------------------


def read_rows() -> dict[str, dict[str, str]]:
    """The rows of the last run, by library and model."""
    path = RESULTS / "attach.csv"
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if tuple(row) == COLUMNS]
    return {f"{row['library']}/{row['model']}": row for row in rows}


def write_tables(models: list[Any], known: dict[str, dict[str, str]]) -> None:
    """The rows of the models that were tried, as CSV and as a page."""
    rows = [known[key] for library, name, _ in models if (key := f"{library}/{name}") in known]
    with (RESULTS / "attach.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    libraries = ("torch", "timm", "torchvision", "transformers", "segmentation-models-pytorch")
    lines = ["# Models that ISDALoss.attach works with", "", *textwrap.wrap(_EXPLANATION.format(TOLERANCE), 120), ""]
    lines += [", ".join(f"{name} {metadata.version(name)}" for name in libraries) + "."]
    lines += ["timm: the smallest model of every module that has a classifier.", ""]
    lines += ["| library | models | by convention | with sample= | wrong |", "|---|---|---|---|---|"]
    for library in (*dict.fromkeys(row["library"] for row in rows), ""):
        own = [row for row in rows if row["library"] == library or not library]
        counts = [sum(row[way] == "attached" for row in own) for way in ("convention", "sample")]
        wrong = sum("wrong" in (row["convention"], row["sample"]) for row in own)
        shares = [f"{count} ({count / max(len(own), 1):.1%})" for count in counts]
        lines.append(f"| {library or 'all'} | {len(own)} | {shares[0]} | {shares[1]} | {wrong} |")
    if len(rows) < len(models):
        lines += ["", f"Not tried yet: {len(models) - len(rows)} of {len(models)} models."]
    others = [row for row in rows if (row["convention"], row["sample"]) != ("attached", "attached")]
    lines += ["", "## Not attached", "", *table(others, ("library", "model", "convention", "sample", "sentence"))]
    works = [row for row in rows if "attached" in (row["convention"], row["sample"])]
    lines += ["", "## Attached", "", *table(works, ("library", "model", "features", "logits", "error"))]
    (RESULTS / "attach.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> list[str]:
    """A table in Markdown."""
    cells = [[row[column].replace("|", "/") for column in columns] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *cells)]


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
