"""First evidence on real images: does the tighter bound generalise better, and does forgetting stale features help?

    python benchmarks/evidence.py --data-root ROOT --runs runs/evidence [--jobs 2]

ROOT holds cifar10 and cifar100. A small network learns a few thousand images without image augmentation, which it fits
almost perfectly. The strength lambda_0 of each variant is chosen on 5,000 held-out training images with seeds of its
own; the runs on the test set follow with five other seeds, paired between methods. Everything is resumed where it
stopped; when all runs are there, benchmarks/results/evidence.{csv,md} and the metrics of each run are written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from isda.engine import RunRecord, find_runs
from isda.report.statistics import paired_difference
from isda.report.summary import Comparison, summarise
from isda.report.wording import plus_minus
from isda.tasks.classification.settings import ClassificationSettings
from recording import RESULTS, Study, keep, mean_of, result_row, write_rows

VARIANTS = {
    "jensen": "isda:",
    "jensen, decay": "isda:decay=0.99,",
    "tilted": "isda-tilted:",
    "tilted, decay": "isda-tilted:decay=0.99,",
}
STRENGTHS = (0.5, 2.0, 5.0)
CHOOSING_SEEDS: dict[str, tuple[int, ...]] = {"cifar10": (100, 101), "cifar100": (100,)}
TEST_SEEDS = (0, 1, 2, 3, 4)
HELD_OUT = 5000
SHARED = ClassificationSettings(
    network="fast-cnn", width=0.5, batch_size=64, augment="none", channels_last=True, evaluate_every=5
)
SETTINGS = {
    "cifar10": replace(SHARED, data="cifar10", labels=3000, epochs=20),
    "cifar100": replace(SHARED, data="cifar100", labels=2000, epochs=40),
}
QUESTIONS = {
    "tighter bound": (("tilted", "jensen"), ("tilted, decay", "jensen, decay")),
    "forgetting": (("jensen, decay", "jensen"), ("tilted, decay", "tilted")),
}


def choose(name: str, study: Study) -> dict[str, dict[float, float]]:
    """Mean error on held-out images of each variant at each strength."""
    settings = replace(SETTINGS[name], held_out=HELD_OUT)
    methods = [f"{prefix}lambda_0={strength:g}" for prefix in VARIANTS.values() for strength in STRENGTHS]
    errors = study.errors(settings, methods, CHOOSING_SEEDS[name], f"choose/{name}")
    return {
        variant: {strength: errors[f"{prefix}lambda_0={strength:g}"] for strength in STRENGTHS}
        for variant, prefix in VARIANTS.items()
    }


def variant_of(run: RunRecord) -> str:
    """The name of a run's method in the tables."""
    if run.method == "cross-entropy":
        return run.method
    return f"{run.method_options['bound']}{', decay' if 'decay' in run.method_options else ''}"


def table(comparison: Comparison) -> list[str]:
    """Errors and paired differences to cross-entropy."""
    lines = [
        "| method | lambda_0 | test error, % | to cross-entropy, points | negative log-likelihood | calibration, % "
        "| training loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in comparison.methods:
        run = method.runs[0]
        assert method.value is not None
        difference = plus_minus(*method.difference) if method.difference else ""
        others = (mean_of(method, key) for key in ("nll", "calibration", "train_loss"))
        strength = run.method_options.get("lambda_0", "")
        cells = (variant_of(run), strength, plus_minus(*method.value), difference, *others)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def answers(comparison: Comparison) -> list[str]:
    """The paired difference behind each question."""
    errors = {variant_of(method.runs[0]): [*method.values.values()] for method in comparison.methods}
    lines = ["| question | difference | points (95%) |", "|---|---|---|"]
    for question, pairs in QUESTIONS.items():
        for ours, base in pairs:
            interval = paired_difference(errors[ours], errors[base])
            lines.append(f"| {question} | {ours} - {base} | {plus_minus(*interval)} |")
    return lines


def write(
    name: str, chosen: dict[str, dict[float, float]], runs: Path, lines: list[str], rows: list[list[object]]
) -> None:
    """Add one data set to the tables and keep the metrics of its runs."""
    records = find_runs([runs / "test" / name])
    (comparison,) = summarise(records)
    settings = SETTINGS[name]
    lines += [
        f"## {name}: {settings.labels} images, {settings.epochs} epochs (custom scale)",
        "",
        *table(comparison),
        "",
        *answers(comparison),
        "",
        f"Held-out error, %, seeds {CHOOSING_SEEDS[name]}, by lambda_0:",
        "",
        f"| method | {' | '.join(f'{strength:g}' for strength in STRENGTHS)} |",
        f"|---|{'---|' * len(STRENGTHS)}",
        *(f"| {variant} | {' | '.join(f'{e:.2f}' for e in errors.values())} |" for variant, errors in chosen.items()),
        "",
    ]
    for record in records:
        keep(record, RESULTS / "evidence" / name)
        rows.append([name, variant_of(record), *result_row(record)])


def main() -> None:
    """Choose, train, write."""
    study = Study.from_arguments(__doc__, "runs/evidence")
    lines = [
        "# First evidence: bounds and forgetting on CIFAR",
        "",
        "Generated by `python benchmarks/evidence.py`. fast-cnn of half width, no image augmentation, batch 64, one "
        "thread per run. Test error: mean of the last epochs, ± standard deviation over seeds "
        f"{TEST_SEEDS}; differences are paired by seed, ± half of Student's interval (95% for all methods of a table "
        "together, 95% each behind the questions), negative is better; decay is "
        f"0.99. lambda_0 was chosen on {HELD_OUT} held-out training images; 10 was tried on CIFAR-10 and left "
        "out, because three of its four runs with the published bound diverged. CIFAR-100 was first run with 4,000 "
        "images and 25 epochs and stopped after 12 runs on held-out and 6 on test images, because cross-entropy ended "
        "at a training loss of 0.34 to 0.44 and was meant to end under 0.2; everything was then chosen and run anew. "
        "Metrics of every run below: evidence/.",
        "",
    ]
    rows: list[list[object]] = []
    for name, settings in SETTINGS.items():
        chosen = choose(name, study)
        best = {variant: min(errors, key=lambda strength: errors[strength]) for variant, errors in chosen.items()}
        print(name, best, flush=True)
        methods = [
            "cross-entropy",
            *(f"{VARIANTS[variant]}lambda_0={strength:g}" for variant, strength in best.items()),
        ]
        study.errors(settings, methods, TEST_SEEDS, f"test/{name}")
        write(name, chosen, study.runs, lines, rows)
    write_rows(RESULTS / "evidence.csv", ["data", "method"], rows)
    (RESULTS / "evidence.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
