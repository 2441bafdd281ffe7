"""The figures in README.md and docs/ are those of benchmarks/results, and none is typed."""

import re

import pytest

from effects_picture import differences, shown
from evidence_figures import over_settings, planned_settings, setting_tables, table_of, wrong_label_settings
from evidence_index import Situation, each_method, situations
from figures import BLOCKS, ROOT, block, pages, written
from isda.lab.report.statistics import Interval

EVIDENCE = ROOT / "docs" / "evidence"
CHECKED = [ROOT / "README.md", ROOT / "docs" / "use-it.md", *sorted(EVIDENCE.glob("*.md"))]
GENERATED = re.compile(r"<!-- figures: .*?<!-- end of figures -->|^```.*?^```", re.DOTALL | re.MULTILINE)
TYPED = re.compile(
    r"±\s?\d"  # a spread
    r"|(?<![\w.])[−+-]\d+\.\d"  # a difference
    r"|\d\.\d+\s?%"
    r"|\d\.\d+ points"
    r"|^\|.*\|\s*\d+\.\d+\s*\|",  # a cell of a table
    re.MULTILINE,
)


def typed_figures(text):
    """What looks like a measured figure outside generated blocks and fenced code."""
    return [match[0] for match in TYPED.finditer(GENERATED.sub("", text))]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_figures_of_a_page_are_current(path):
    text = path.read_text(encoding="utf-8")
    assert written(text, path.relative_to(ROOT).as_posix()) == text, "run `make analyse`"


def test_the_picture_of_few_images_is_current():
    assert shown() == differences(), "run `make analyse`"


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
    table = text.index("<!-- figures: summary -->")
    number = re.search(r"−\d\.\d\d ±", text[table:])
    assert number is not None
    changed = text[:table] + text[table:].replace(number[0], "−9.99 ±", 1)
    assert changed != text
    assert written(changed, "README.md") == text


def test_an_unknown_block_is_refused():
    with pytest.raises(ValueError, match=r"must be one of summary, .*, got 'nothing'"):
        block("nothing")


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_measured_figure_is_typed(path):
    assert typed_figures(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "The error is 40.1 ± 1.2.",
        "ISDA changes the error by −0.13.",
        "It is higher (+2.14).",
        "The test error is 34.1%.",
        "λ0 = 5 costs 4.2 points.",
        "| cross-entropy | 0.020 | 53 |",
        "<!-- figures: demo -->\n<!-- end of figures -->\n\nThe error is 6.2%.",
    ],
)
def test_a_typed_figure_is_found(text):
    assert len(typed_figures(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "No difference in error was found; simultaneous 95% confidence intervals.",
        "CIFAR-10, 3,000 images, λ0 = 0.5, `decay=0.99`, `--lr 5e-4`, λ0 from 0.25 to 1, N-2.5D.",
        "± after an error: standard deviation over seeds.",
        "| `--method acgan --ema 0.995` | 1,860 |",
        "```sh\nisda report --plan 0.5  # a difference of 0.5 points\n```",
        "<!-- figures: demo -->\nThe error is 6.15 ± 1.12.\n<!-- end of figures -->",
    ],
)
def test_settings_and_generated_figures_are_allowed(text):
    assert typed_figures(text) == []


LOWER, HIGHER, UNCLEAR = Interval(-2.0, 1.0), Interval(2.0, 1.0), Interval(-2.0, 3.0)


@pytest.mark.parametrize(
    ("errors", "nll", "rising", "better"),
    [
        ([LOWER], [HIGHER], False, True),
        ([UNCLEAR], [LOWER], False, True),
        ([UNCLEAR], [UNCLEAR], False, False),
        ([UNCLEAR], [Interval(-0.003, 0.001)], False, False),
        ([HIGHER], [LOWER], False, False),
        ([LOWER, HIGHER], [], False, False),
        ([HIGHER], [], True, True),
        ([LOWER], [], True, False),
        ([None, Interval(-2.0, None)], [], False, False),
    ],
)
def test_intervals_decide_where_isda_helps(errors, nll, rising, better):
    situation = Situation("", "demo", dict(enumerate(errors)), dict(enumerate(nll)), rising=rising)
    assert situation.helps == better


@pytest.mark.parametrize(("half", "rows"), [(2.5, 2), (0.5, 1)])
def test_strengths_that_disagree_have_rows_of_their_own(half, rows):
    nll = {"cross-entropy": 2.0, "isda:lambda_0=auto": 0.5, "isda:lambda_0=0.5": half}
    table = table_of(
        [
            {"method": method, "seed": str(seed), "error": "1", "nll": str(mean + 0.01 * (seed * len(method) % 7))}
            for method, mean in nll.items()
            for seed in range(5)
        ],
        ("error", "nll"),
    )
    assert [situation.helps for situation in each_method("few images", "few-images", table)] == [True, False][:rows]


def test_every_situation_is_in_one_table_of_the_index_with_an_existing_page():
    text = (EVIDENCE / "index.md").read_text(encoding="utf-8")
    for situation in situations():
        assert text.count(f"| {situation.words} | ") == 1
        assert (EVIDENCE / f"{situation.page}.md").exists()


def run(method, seed, setting="CIFAR-10, 9 images"):
    figures = {"error": "1", "nll": str(seed), "calibration": "1"}
    return {"setting": setting, "method": method, "seed": str(seed), **figures}


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ({"cross-entropy": (10, 11, 12), "mixup": (10, 11, 12)}, {10, 11, 12}),
        ({"cross-entropy": (10, 11, 12, 13), "mixup": (10, 11, 12)}, {10, 11, 12}),
        ({"cross-entropy": (10, 11, 12), "mixup": (10, 11, 13)}, None),
        ({"mixup": (10, 11, 12)}, None),
    ],
)
def test_a_setting_is_shown_from_three_seeds_that_all_methods_have(seeds, expected, monkeypatch):
    rows = tuple(run(method, seed) for method, own in seeds.items() for seed in own)
    monkeypatch.setattr("evidence_figures.rows_of", {"few_images": rows}.__getitem__)
    setting_tables.cache_clear()
    tables = setting_tables("few_images")
    setting_tables.cache_clear()
    assert {name: set(table.values["cross-entropy"]) for name, table in tables.items()} == (
        {"CIFAR-10, 9 images": expected} if expected else {}
    )


def test_wrong_labels_are_not_part_of_the_effect_over_settings(monkeypatch):
    names = ("CIFAR-10, 9 images", "CIFAR-10, 9 images, 20% wrong labels")
    rows = tuple(
        run(method, seed, name) for name in names for method in ("cross-entropy", "mixup") for seed in (1, 2, 3)
    )
    monkeypatch.setattr("evidence_figures.rows_of", {"few_images": rows}.__getitem__)
    setting_tables.cache_clear()
    kept, left_out, effect = planned_settings(), wrong_label_settings(), over_settings("nll", "mixup")
    setting_tables.cache_clear()
    assert ([*kept], [*left_out], effect.problems) == ([names[0]], [names[1]], 1)
