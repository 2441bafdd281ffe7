"""Synthetic run folders, and a browser to look at the pages that are made of them."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from report_browser import FLAGS, OpenPage

METHODS = {
    "cross-entropy": {},
    "isda": {"lambda_0": 0.5, "bound": "jensen", "covariance": "full"},
    "isda-tilted": {"lambda_0": 0.5, "bound": "tilted", "covariance": "full"},
}
GAIN = {"cross-entropy": 0.0, "isda": 0.9, "isda-tilted": 0.35}
EPOCHS = 20


def write_run(folder: Path, method: str = "isda", seed: int = 0, stop: int | None = None, **changes) -> Path:
    """One run folder whose error falls like a real one; with `stop` it was killed after that epoch."""
    folder.mkdir(parents=True)
    options = changes.pop("method_options", METHODS.get(method, {}))
    error = changes.pop("error", None)
    config = {
        "format": 1,
        "version": "0.1.0",
        "data": "cifar10",
        "network": "resnet-20",
        "method": method,
        "method_options": options,
        "seed": seed,
        "scale": "small",
        "epochs": EPOCHS,
        "average_last": 2,
        "batch_size": 128,
        "lr": 0.1,
        "milestones": [10, 15],
        "network_options": {"width": 0.5},
        "ema": None,
        "evaluated_on": "test",
        "classes": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
        "train_images": 5000,
        "test_images": 10000,
        "asked": {"method": method, "seed": seed},
    } | changes
    (folder / "config.json").write_text(json.dumps(config))
    environment = {
        "python": "3.11.7",
        "torch": "2.15.0",
        "device": "cpu",
        "threads": 1,
        "started": f"2026-01-0{seed + 1}",
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    epochs = config["epochs"]
    metrics = _metrics(method, seed, epochs, config["milestones"])
    kept = metrics[:stop]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    if stop is None:
        last = metrics[-config["average_last"] :]
        result = {
            "error": sum(record["test/error"] for record in last) / len(last) if error is None else error,
            "error_last": metrics[-1]["test/error"],
            "error_top5": metrics[-1]["test/error_top5"],
            "nll": metrics[-1]["test/nll"],
            "calibration": metrics[-1]["test/calibration"],
            "train_loss": metrics[-1]["train/loss"],
            "epochs": epochs,
            "average_last": config["average_last"],
            "scale": config["scale"],
            "seconds": 210.0 + seed,
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def _metrics(method: str, seed: int, epochs: int, milestones: list[int]) -> list[dict[str, float]]:
    draw, of_seed = random.Random(f"{method} {seed}"), random.Random(seed).gauss(0, 0.5)
    records = []
    for epoch in range(1, epochs + 1):
        drops = sum(epoch > milestone for milestone in milestones)
        noise = draw.gauss(0, 1.5 if drops == 0 else 0.25)
        error = 30 + 50 * math.exp(-epoch / 3) - 5 * drops - GAIN.get(method, 0.0) + of_seed + noise
        record = {
            "epoch": epoch,
            "step": 39 * epoch,
            "learning_rate": 0.1 * 0.1**drops,
            "train/loss": 2.2 * math.exp(-epoch / 5) * 0.5**drops + 0.01 * draw.random() + 0.02,
            "test/error": error,
            "test/error_top5": error / 10,
            "test/nll": error / 25,
            "test/calibration": 3 + draw.random(),
            "seconds": 10.5,
        }
        if method.startswith("isda"):
            record["strength"] = 0.5 * epoch / epochs
        records.append(record)
    return records


@pytest.fixture(scope="session")
def make_run():
    """The function that writes one run folder."""
    return write_run


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory) -> Path:
    """Three methods, four seeds and twenty epochs; one run was killed after epoch 12."""
    top = tmp_path_factory.mktemp("report") / "runs"
    for method in METHODS:
        for seed in range(4):
            write_run(top / method / f"seed-{seed}", method, seed, 12 if (method, seed) == ("isda-tilted", 3) else None)
    return top


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; where it is not installed the test is skipped, but fails in CI."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        reason = "chromium is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    """Opens a file at some width and colour scheme, with or without scripts; closed after the test."""
    opened = []

    def open_file(file: Path, width: int = 1200, scheme: str = "light", script: bool = True) -> OpenPage:
        opened.append(OpenPage(browser, file, width, scheme, script))
        return opened[-1]

    yield open_file
    for page in opened:
        page.context.close()
