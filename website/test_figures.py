"""The figures in README.md and docs/ are those of benchmarks/results."""

import re

import pytest

from figures import BLOCKS, ROOT, block, pages, written


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_figures_of_a_page_are_current(path):
    text = path.read_text(encoding="utf-8")
    assert written(text, path.relative_to(ROOT).as_posix()) == text, "run `make analyse`"


def test_every_block_is_used_and_marked_correctly():
    texts = "\n".join(path.read_text(encoding="utf-8") for path in pages())
    assert texts.count("<!-- figures: ") == texts.count("<!-- end of figures -->")
    assert set(BLOCKS) <= set(re.findall(r"<!-- figures: (.*?) -->", texts))


def test_links_lead_from_the_page_to_the_results():
    text = "<!-- figures: use-it -->\n<!-- end of figures -->"
    assert "](benchmarks/results/rivals.md)" in written(text, "README.md")
    assert "](../../benchmarks/results/rivals.md)" in written(text, "docs/evidence/index.md")


def test_a_figure_that_changes_changes_the_page():
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    table = text.index("<!-- figures: use-it -->")
    number = re.search(r"−\d\.\d\d ±", text[table:])
    assert number is not None
    changed = text[:table] + text[table:].replace(number[0], "−9.99 ±", 1)
    assert changed != text
    assert written(changed, "README.md") == text


def test_an_unknown_block_is_refused():
    with pytest.raises(ValueError, match=r"must be one of use-it, demo, .*, got 'nothing'"):
        block("nothing")
