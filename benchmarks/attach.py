"""Does `ISDALoss.attach(model)` work? Models of timm, torchvision, segmentation_models_pytorch and transformers.

python benchmarks/attach.py [--again] [NAME ...] writes benchmarks/results/attach.csv and attach.md. Rows that are there
are kept unless --again asks for all anew, or a name for its own. Weights are random; nothing is downloaded.

A model counts as attached when `criterion = ISDALoss.attach(model)` and `criterion(model(x), y)` work as they stand and
- the features a and the weight W that enter the loss explain the logits: z - W a, computed here in float64 from the
  model's own output, is one and the same vector b for all rows (interpolated, where the model interpolates);
- with lambda_0 = 0 the loss is F.cross_entropy of the logits, to the bit;
- the gradient of the loss reaches every parameter of the weight.
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
from isda.functional.patches import Patches

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("library", "model", "outcome", "classes", "features", "covariance", "logits", "error", "seconds", "sentence")
TOLERANCE = 1e-6
_EXPLANATION = (
    "`make bench-attach` wrote this table: {} of {} models ({:.1%}) are attached by the plain line, the others get the "
    "sentence shown. Attached means: `criterion = ISDALoss.attach(model)` and `criterion(model(x), y)` work as they "
    "stand, with random weights in training mode (dropout 0); the features and the weight that enter the loss explain "
    "the logits that the model made: z - W a, computed in float64 outside the library, is one vector for all rows to "
    "{:g} of the spread of z (column error); lambda_0 = 0 gives F.cross_entropy to the bit; the gradient reaches every "
    "parameter that W is made of."
)


def main() -> None:
    """Try every model that has no row yet, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="models to try again")
    parser.add_argument("--again", action="store_true", help="try all models again")
    arguments = parser.parse_args()
    known = {} if arguments.again else read_rows()
    rows: dict[str, dict[str, str]] = {}
    models = list(catalogue())
    for library, name, make in models:
        key = f"{library}/{name}"
        if key not in known or name in arguments.names:
            known[key] = {"library": library, "model": name, **tried(make)}
            print(key, known[key]["outcome"], known[key]["error"], known[key]["sentence"], flush=True)
        rows[key] = known[key]
        # After every row, so that a run that is stopped can go on, and shows what it has.
        everything = [*rows.values(), *(row for other, row in known.items() if other not in rows)]
        write_csv(everything)
        write_table(everything, len(models))
    write_csv(list(rows.values()))
    write_table(list(rows.values()), len(models))


def tried(make: Any) -> dict[str, str]:
    """One row of the table."""
    started = time.perf_counter()
    row = dict.fromkeys(COLUMNS[2:], "")
    torch.manual_seed(0)
    try:
        sample: Sample = make()
    except Exception as error:  # a library that cannot make its own model is no fault of attach
        return {**row, "outcome": "not made", "sentence": _sentence(error)}
    try:
        row.update(attached(sample))
        row["outcome"] = "attached"
    except ValueError as error:
        row.update(outcome="refused", sentence=_sentence(error))
    except Exception as error:
        row.update(outcome="failed", sentence=f"{type(error).__name__}: {_sentence(error)}")
    return {**row, "seconds": f"{time.perf_counter() - started:.1f}"}


def attached(sample: Sample) -> dict[str, str]:
    """What is worth saying of a model that works; AssertionError where a claim does not hold."""
    sample = in_float64(sample)
    model, targets = sample.model.train(), sample.targets
    _leave_zero(model)
    criterion = ISDALoss.attach(model, schedule="constant")
    entered: list[Any] = []
    checked = criterion._check_inputs

    def watched(*batch: Any) -> Any:
        entered.append(batch)
        return checked(*batch)

    criterion._check_inputs = watched  # type: ignore[assignment,method-assign]
    output = _run(sample)
    loss = criterion(output, targets)
    logits, _, features, weight = entered[0]
    error = unexplained(logits.detach(), features, weight.detach())
    assert error < TOLERANCE, f"logits differ from W a + b by {error:.1g}"
    assert loss.isfinite(), "the loss is not finite"
    gradients = torch.autograd.grad(loss, list(_leaves(weight)), allow_unused=True)
    assert all(gradient is not None for gradient in gradients), "no gradient reaches a part of the weight"
    plain = ISDALoss.attach(model, lambda_0=0)
    with torch.random.fork_rng():
        output = _run(sample)
    wanted = _cross_entropy(_logits(output), targets, criterion.num_classes)
    assert torch.equal(plain(output, targets), wanted), "lambda_0=0 is not cross-entropy"
    kind = type(criterion.covariance).__name__.removesuffix("Covariance")
    return {
        "classes": str(criterion.num_classes),
        "features": str(criterion.feature_dim),
        "covariance": kind,
        "logits": "x".join(map(str, _logits(output).shape)),
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


def unexplained(logits: Tensor, features: Tensor | Patches, weight: Tensor) -> float:
    """How far z - W a is from being the same vector for all rows, relative to how far z is; in float64."""
    maps = features.maps() if isinstance(features, Patches) else features
    product = torch.einsum("ca,na...->nc...", weight.flatten(1).double(), maps.double())
    if product.shape != logits.shape:
        # What a model interpolates with is not known here; one of the two has to fit.
        size = logits.shape[2:]
        return min(
            _spread(logits.double() - F.interpolate(product, size, mode="bilinear", align_corners=corners), logits)
            for corners in (False, True)
        )
    return _spread(logits.double() - product, logits)


def _spread(residual: Tensor, logits: Tensor) -> float:
    rows, wanted = (t.double().movedim(1, -1).flatten(0, -2) for t in (residual, logits))
    spread = (wanted - wanted.mean(0)).norm()
    assert spread > 1e-9 * wanted.norm(), "the logits of all rows are equal: nothing to explain"
    return float((rows - rows.mean(0)).norm() / spread)


def _run(sample: Sample) -> Any:
    if isinstance(sample.inputs, dict):
        return sample.model(**sample.inputs)
    return sample.model(*sample.inputs)


def _logits(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    return output["out"] if isinstance(output, dict) and "out" in output else output.logits


def _cross_entropy(logits: Tensor, targets: Tensor, classes: int) -> Tensor:
    if targets.ndim == 2:  # tokens
        logits = logits.transpose(1, 2)
    if logits.ndim == 4 and logits.shape[2:] != targets.shape[1:]:
        logits = F.interpolate(logits, targets.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(logits, targets)


def _leaves(tensor: Tensor) -> set[Tensor]:
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


def _leave_zero(model: nn.Module) -> None:
    """Classifiers that start at zero explain any logits: give them weights. Dropout would hide equal outputs: none."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            for parameter in (module.weight, module.bias):
                if parameter is not None and not parameter.detach().any():
                    nn.init.normal_(parameter, std=0.02)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


# -- tables ------------------------------------------------------------------------------------------------------------


def read_rows() -> dict[str, dict[str, str]]:
    """The rows of the last run, by library and model."""
    path = RESULTS / "attach.csv"
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {f"{row['library']}/{row['model']}": row for row in csv.DictReader(file)}


def write_csv(rows: list[dict[str, str]]) -> None:
    """Every column of every model."""
    with (RESULTS / "attach.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_table(rows: list[dict[str, str]], asked: int) -> None:
    """The page for readers."""
    libraries = ("torch", "timm", "torchvision", "transformers", "segmentation-models-pytorch")
    lines = ["# Models that ISDALoss.attach(model) works with", ""]
    works = sum(row["outcome"] == "attached" for row in rows)
    lines += [
        *textwrap.wrap(_EXPLANATION.format(works, len(rows), works / len(rows), TOLERANCE), 120),
        "",
        ", ".join(f"{name} {metadata.version(name)}" for name in libraries) + ".",
        "timm: the smallest model of every module that has a classifier.",
        f"Not tried yet: {max(0, asked - len(rows))} of {asked} models.",
        "",
        "| library | models | attached |",
        "|---|---|---|",
    ]
    for library in dict.fromkeys(row["library"] for row in rows):
        own = [row for row in rows if row["library"] == library]
        lines.append(f"| {library} | {len(own)} | {sum(row['outcome'] == 'attached' for row in own)} |")
    others = [row for row in rows if row["outcome"] != "attached"]
    if others:
        lines += ["", "## Not attached", "", "| library | model | outcome | sentence |", "|---|---|---|---|"]
        lines += [
            f"| {r['library']} | {r['model']} | {r['outcome']} | {r['sentence'].replace('|', '/')} |" for r in others
        ]
    lines += [
        "",
        "## Attached",
        "",
        "| library | model | features | covariance | logits | error |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['library']} | {r['model']} | {r['features']} | {r['covariance']} | {r['logits']} | {r['error']} |"
        for r in rows
        if r["outcome"] == "attached"
    ]
    (RESULTS / "attach.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> list[str]:
    cells = [" | ".join(row[column].replace("|", "/") for column in columns) for row in rows]
    return [f"| {line} |" for line in (" | ".join(columns), " | ".join("---" for _ in columns), *cells)]


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
