"""The page in a real browser: drawn, light and dark, on a desk and on a phone, with and without its script."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from isda.lab.engine import find_runs
from isda.lab.report.page import write_report
from run_folders import leave_predictions

PAPER = {"light": (0xFD, 0xFC, 0xF9), "dark": (0x16, 0x18, 0x1B)}
CURVES = {
    "light": [(0x63, 0x68, 0x6F), (0x1A, 0x55, 0xD9), (0xD6, 0x5D, 0x0E)],
    "dark": [(0xA7, 0xAD, 0xB5), (0x5F, 0x7D, 0xFF), (0xCC, 0x7A, 0x30)],
}
WIDTHS = {"desk": 1200, "phone": 375}
TEXTS = """selector => [...document.querySelectorAll(selector)].filter(e => e.clientWidth).flatMap(chart => {
    const outer = chart.getBoundingClientRect();
    return [...chart.querySelectorAll("text")].map(text => {
        const box = text.getBoundingClientRect();
        const across = box.left >= outer.left - 1 && box.right <= outer.right + 1;
        return {size: 12 * outer.width / chart.viewBox.baseVal.width, text: text.textContent,
                inside: across && box.top >= outer.top - 1 && box.bottom <= outer.bottom + 1};
    })})"""
"""The words of the charts that a selector finds: their size, and whether they lie inside."""


@pytest.fixture(scope="module")
def page(runs_folder, tmp_path_factory, make_run):
    """The usual runs, and a second section with names that are too long for a phone."""
    top = tmp_path_factory.mktemp("page")
    options = {"covariance": "low_rank", "decay": 0.999, "a_very_long_name_of_an_option_of_a_method": 1}
    for name, settings in (("a", {}), ("b", options)):
        make_run(top / name, "isda", data="a-data-set-with-a-name-of-many-letters", method_options=settings)
    write_report(find_runs([runs_folder, top]), top / "report.html")
    return top / "report.html"


def near(image, colour):
    """How many pixels have the colour."""
    return int((np.abs(np.asarray(image).astype(int) - colour).max(axis=-1) <= 2).sum())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("place", ["desk", "phone"])
def test_curves_are_drawn_in_the_colours_of_the_scheme(open_page, page, scheme, place):
    shown = open_page(page, WIDTHS[place], scheme, script=False)
    image = shown.screenshot("svg[id^='c1-headline']")
    assert image.width > 0.6 * min(WIDTHS[place], 800)
    assert near(image, PAPER[scheme]) > 0.7 * image.width * image.height
    for colour in CURVES[scheme]:
        assert near(image, colour) > 80
    forest = shown.screenshot("svg[id^='c1-forest']")
    for colour in CURVES[scheme][1:]:
        assert near(forest, colour) > 60
    assert near(shown.screenshot("#c1-curve2"), CURVES[scheme][1]) > 100


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_nothing_makes_the_page_scroll_sideways(open_page, page, place):
    shown = open_page(page, WIDTHS[place]).page
    shown.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert shown.evaluate("innerWidth") == WIDTHS[place]
    assert shown.evaluate("document.documentElement.scrollWidth") <= WIDTHS[place]
    # Whatever is wider lies in a box that scrolls by itself.
    beyond = """[...document.querySelectorAll("body *")]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll"))
        .map(e => e.outerHTML.slice(0, 90))"""
    assert shown.evaluate(beyond) == []


def test_results_fit_a_phone_and_captions_stay_in_view(open_page, page):
    shown = open_page(page, 375).page
    assert shown.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#c1 .scroll'))") <= 8
    right = "Math.max(...[...document.querySelectorAll('caption span')].map(e => e.getBoundingClientRect().right))"
    assert shown.evaluate(right) <= 375


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_text_of_charts_is_legible_and_inside_them(open_page, page, place):
    found = open_page(page, WIDTHS[place]).page.evaluate(TEXTS, "svg.chart")
    assert len(found) > 40
    assert min(text["size"] for text in found) >= 10.5
    assert max(text["size"] for text in found) <= 16
    assert [text["text"] for text in found if not text["inside"]] == []


def test_each_chart_is_shown_once(open_page, page):
    for place, width in WIDTHS.items():
        charts = "[...document.querySelectorAll('svg.chart')].filter(e => e.clientWidth).map(e => e.id)"
        ending = "-phone" if place == "phone" else ""
        expected = [f"c1-forest{ending}", f"c1-headline{ending}", "c1-curve1", "c1-curve2"]
        assert open_page(page, width).page.evaluate(charts)[:4] == expected


def test_the_key_hides_a_method_without_any_script(open_page, page):
    shown = open_page(page, script=False)
    image = shown.screenshot("#c1-headline")
    shown.page.locator("#c1 .key input[data-method='1']").uncheck(force=True)
    without = shown.screenshot("#c1-headline")
    assert near(image, CURVES["light"][1]) > 300
    assert near(without, CURVES["light"][1]) == 0
    assert near(without, CURVES["light"][2]) > 300


def test_pointing_at_a_chart_reads_the_means(open_page, page):
    shown = open_page(page).page
    chart = shown.locator("#c1-headline")
    box = chart.bounding_box()
    chart.hover(position={"x": 0.975 * box["width"], "y": box["height"] / 2})
    means = shown.evaluate(
        "[...document.querySelectorAll('#c1-headline path.mean')].map(e => JSON.parse(e.dataset.points)['20'])"
    )
    first, second, third = (f"{mean:.4g}" for mean in means)
    text = shown.locator("#c1-headline + .readout").text_content()
    assert text == f"Epoch 20: cross-entropy {first}, isda {second}, isda-tilted {third}"


def test_the_page_loads_nothing_and_raises_nothing(open_page, page):
    shown = open_page(page)
    assert shown.requested == [page.resolve().as_uri()]
    assert shown.errors == []


# -- what predictions show, and tables that are wider than a phone --------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, make_run):
    """A page of two methods that have left predictions, with ten classes, and of a comparison of many options."""
    top = tmp_path_factory.mktemp("evaluated")
    for number, method in enumerate(("cross-entropy", "isda")):
        for seed in range(2):
            leave_predictions(make_run(top / "runs" / f"{method}-{seed}", method, seed), 10 * number + seed)
    for option in ("one", "two", "three", "four", "five", "six"):
        make_run(top / "wide" / option, "isda", data="svhn", method_options={"an_option_of_a_method": option})
    write_report(find_runs([top / "runs", top / "wide"]), top / "report.html")
    return top / "report.html"


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_diagrams_matrices_and_mistakes_are_drawn(open_page, evaluated, place):
    shown = open_page(evaluated, WIDTHS[place], script=False)
    for chart in ("reliability", "confusion"):
        image = shown.screenshot(f"#c1-{chart}2")
        assert 300 < image.width <= 420
        colours = np.asarray(image).reshape(-1, 3).astype(int)
        # The colour of the second method, mixed with the page: more blue than red.
        assert int((colours[:, 2] - colours[:, 0] > 25).sum()) > 300
    tile = shown.screenshot(".tiles img")
    assert 60 <= min(tile.size) <= max(tile.size) <= 90
    assert len(np.unique(np.asarray(tile).reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_charts_of_predictions_are_legible(open_page, evaluated, place):
    found = open_page(evaluated, WIDTHS[place]).page.evaluate(TEXTS, "#c1-reliability1, #c1-confusion1")
    assert len(found) > 40
    assert [text["text"] for text in found if not text["inside"]] == []


def test_a_table_that_is_cut_says_so(open_page, evaluated):
    shown = open_page(evaluated, 390).page
    shown.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    shown.wait_for_function("document.querySelector('#c2 .wide')")
    boxes = shown.evaluate("""[...document.querySelectorAll('.scroll')].map(box => ({
        cut: box.scrollWidth > box.clientWidth + 1,
        hint: getComputedStyle(box.querySelector('caption span'), '::after').content}))""")
    assert any(box["cut"] for box in boxes)
    assert not all(box["cut"] for box in boxes)
    for box in boxes:
        assert ("Scroll the table sideways" in box["hint"]) == box["cut"]


def test_a_table_that_is_cut_has_a_shadow_without_any_script(open_page, evaluated):
    shown = open_page(evaluated, 390, script=False)
    table = shown.page.locator("#c2 .scroll", has_text="Settings in which the runs differ").first
    image = np.asarray(Image.open(io.BytesIO(table.screenshot())).convert("L")).astype(int)
    # The last columns of pixels are darker than the page although most rows of them hold no text.
    assert np.median(image[:, -2]) < 0.93 * PAPER["light"][0]
    table.evaluate("box => box.scrollLeft = box.scrollWidth")
    scrolled = np.asarray(Image.open(io.BytesIO(table.screenshot())).convert("L")).astype(int)
    assert np.median(scrolled[:, -2]) > 0.97 * PAPER["light"][0]
    assert np.median(scrolled[:, 1]) < 0.93 * PAPER["light"][0]


def test_runs_are_folded_and_numbers_can_be_downloaded(open_page, evaluated):
    shown = open_page(evaluated).page
    listed = shown.locator("#c1 details", has_text="The 4 runs and their folders")
    assert not listed.locator("table").is_visible()
    listed.locator("summary").click()
    assert listed.locator("table").is_visible()
    with shown.expect_download() as download:
        shown.get_by_role("link", name="figures of every run").first.click()
    assert download.value.suggested_filename == "c1-runs.csv"
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("comparison,method,seed,finished,epoch,error,")
