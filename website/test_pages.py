"""The site as it is read: every code block runs, every link leads somewhere, pictures and equations are current."""

import html
import pkgutil
import re
import subprocess
import urllib.request
from pathlib import Path
from urllib.parse import unquote

import pytest
from PIL import Image

import evidence
from code_blocks import ROOT, pages, run_page

SITE = ROOT / "build" / "site"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks(page: Path):
    run_page(page)


def test_links_lead_somewhere():
    texts = {path: path.read_text(encoding="utf-8") for path in SITE.rglob("*.html") if "_static" not in path.parts}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    broken = []
    for path, text in texts.items():
        for target in set(re.findall(r'\b(?:href|src)="(?!\w+:|//)([^"]+)"', text)):
            name, _, anchor = unquote(html.unescape(target)).partition("#")
            other = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not other.exists() or (anchor and anchor not in anchors.get(other, {anchor})):
                broken.append(f"{path.relative_to(SITE)}: {target}")
    assert texts
    assert not broken


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#\s:]+)[)#]", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_the_picture_of_readme_shows_the_figures_of_the_results():
    with Image.open(evidence.FOREST) as picture:
        assert picture.info["differences"] == evidence.shown(evidence.summary())


def test_the_functions_of_equations_exist():
    text = (ROOT / "docs" / "paper" / "equations.md").read_text(encoding="utf-8")
    names = re.findall(r"`(isda\.[\w.]+)`", text)
    assert len(names) > 10
    for name in names:
        pkgutil.resolve_name(name)


SCRIPTS = {
    "timm": "huggingface/pytorch-image-models/aa4b5850c1543fa488abf260f18390eda46cf85d/train.py",
    "torchvision": "pytorch/vision/e6f04004f0e0f759b44329d9ee6751a55abf0f83/references/classification/train.py",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_diffs_apply_to_the_scripts_that_they_name(name, tmp_path):
    script = tmp_path / "train.py"
    try:
        urllib.request.urlretrieve(f"https://raw.githubusercontent.com/{SCRIPTS[name]}", script)
    except OSError as error:
        pytest.skip(f"the script cannot be had here: {error}")
    diff = ROOT / "docs" / "how-to" / "diffs" / f"{name}.diff"
    subprocess.run(["patch", "--silent", str(script), str(diff)], check=True)
    compile(script.read_text(encoding="utf-8"), str(script), "exec")
