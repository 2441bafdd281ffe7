"""The examples for other libraries, as a user runs them, in a folder of their own."""

from __future__ import annotations

import gc
import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "accuracy"), [("huggingface_digits", 65.0), ("accelerate_digits", 85.0)])
def test_an_example_learns_its_digits(name, accuracy, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    gc.freeze()
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        gc.unfreeze()
    last = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(r"strength 0\.5 after \d+ steps, test accuracy ([\d.]+)%", last)
    assert found, last
    assert float(found[1]) > accuracy
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 40
