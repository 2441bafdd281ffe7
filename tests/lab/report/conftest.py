"""Run folders to report, and a browser to look at the pages that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from report_browser import OpenPage

from run_folders import write_comparison, write_run, write_strangers_run


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """The function that writes one run folder."""
    return write_run


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, four seeds and twenty epochs; one run was killed after epoch 12."""
    return write_comparison(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="session")
def strangers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods of a task that is nowhere installed, on three seeds: a bare number, and higher is better."""
    top = tmp_path_factory.mktemp("strangers") / "runs"
    for method, reached in {"soft": (0.7162, 0.7233, 0.7301), "pixel-cross-entropy": (0.7121, 0.718, 0.7255)}.items():
        for seed, miou in enumerate(reached):
            write_strangers_run(top / method / f"seed-{seed}", method, seed, miou)
    return top


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
