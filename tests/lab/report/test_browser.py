"""The page in a real browser: drawn, light and dark, on a desk and on a phone; it has no script."""

import numpy as np
import pytest

from isda.lab.engine import find_runs
from isda.lab.report.page import write_report
from run_folders import leave_predictions

PAPER = {"light": (0xFD, 0xFC, 0xF9), "dark": (0x16, 0x18, 0x1B)}
CURVES = {
    "light": [(0x63, 0x68, 0x6F), (0x1A, 0x55, 0xD9), (0xD6, 0x5D, 0x0E)],
    "dark": [(0xA7, 0xAD, 0xB5), (0x5F, 0x7D, 0xFF), (0xCC, 0x7A, 0x30)],
}
WIDTHS = {"desk": 1280, "phone": 390}
TEXTS = """() => [...document.querySelectorAll("svg.chart")].flatMap(chart => {
    const outer = chart.getBoundingClientRect();
    return [...chart.querySelectorAll("text:not(:has(tspan)), tspan")].map(text => {
        const box = text.getBoundingClientRect();
        return {size: parseFloat(getComputedStyle(text).fontSize) * outer.width / chart.viewBox.baseVal.width,
                text: text.textContent, inside: box.left >= outer.left - 3 && box.right <= outer.right + 3};
    })})"""
"""The words of the charts: their size in pixels, and whether they lie inside."""


@pytest.fixture(scope="module")
def page(runs_folder, tmp_path_factory, make_run):
    """The usual runs, a section with names that are too long for a phone, and one with predictions."""
    top = tmp_path_factory.mktemp("page")
    options = {"covariance": "low_rank", "a_very_long_name_of_an_option_of_a_method": 1}
    for name, settings in (("a", {}), ("b", options)):
        make_run(top / name, "isda", data="a-data-set-with-a-name-of-many-letters", method_options=settings)
    for number, method in enumerate(("cross-entropy", "isda")):
        for seed in range(2):
            run = make_run(top / f"{method}-{seed}", method, seed, data="svhn")
            leave_predictions(run, 10 * number + seed)
    write_report(find_runs([runs_folder, top]), top / "report.html")
    return top / "report.html"


def near(image, colour):
    """How many pixels have the colour."""
    return int((np.abs(np.asarray(image).astype(int) - colour).max(axis=-1) <= 2).sum())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("place", ["desk", "phone"])
def test_charts_are_drawn_in_the_colours_of_the_scheme(open_page, page, scheme, place):
    shown = open_page(page, WIDTHS[place], scheme, script=False)
    image = shown.screenshot("#s1 figure:nth-of-type(2) .chart")
    assert 300 < image.width < 500
    assert near(image, PAPER[scheme]) > 0.6 * image.width * image.height
    for colour in CURVES[scheme]:
        assert near(image, colour) > 80
    for colour in CURVES[scheme][1:]:
        assert near(shown.screenshot("#s1 figure:nth-of-type(1) .chart"), colour) > 40


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_nothing_makes_the_page_scroll_sideways(open_page, page, place):
    shown = open_page(page, WIDTHS[place]).page
    shown.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert shown.evaluate("innerWidth") == WIDTHS[place]
    assert shown.evaluate("document.documentElement.scrollWidth") <= WIDTHS[place]
    # Whatever is wider lies in a box that scrolls by itself.
    beyond = """[...document.querySelectorAll("body *")]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 3 && !e.closest(".scroll"))
        .map(e => e.outerHTML.slice(0, 90))"""
    assert shown.evaluate(beyond) == []


def test_results_fit_a_phone_and_captions_stay_in_view(open_page, page):
    shown = open_page(page, 390).page
    assert shown.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#s1 .scroll'))") <= 0
    right = "Math.max(...[...document.querySelectorAll('caption span')].map(e => e.getBoundingClientRect().right))"
    assert shown.evaluate(right) <= 390


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_text_of_charts_is_legible_and_inside_them(open_page, page, place):
    found = [text for text in open_page(page, WIDTHS[place]).page.evaluate(TEXTS) if text["text"].strip()]
    assert len(found) > 60
    assert min(text["size"] for text in found) >= 10.5
    assert max(text["size"] for text in found) <= 17
    assert [text["text"] for text in found if not text["inside"]] == []


def test_the_key_hides_a_method_without_any_script(open_page, page):
    shown = open_page(page, script=False)
    chart = "#s1 figure:nth-of-type(2) .chart"
    assert near(shown.screenshot(chart), CURVES["light"][1]) > 100
    shown.page.locator("#s1 .key input[data-method='1']").uncheck(force=True)
    without = shown.screenshot(chart)
    assert near(without, CURVES["light"][1]) == 0
    assert near(without, CURVES["light"][2]) > 100


def test_the_page_loads_nothing_and_raises_nothing(open_page, page):
    shown = open_page(page)
    assert [address for address in shown.requested if not address.startswith("data:")] == [page.resolve().as_uri()]
    assert shown.errors == []


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_matrices_and_mistakes_are_drawn(open_page, page, place):
    shown = open_page(page, WIDTHS[place], script=False)
    matrix = np.asarray(shown.screenshot(".compact")).reshape(-1, 3).astype(int)
    # Cells are shaded with the colour of methods: more blue than red.
    assert int((matrix[:, 2] - matrix[:, 0] > 25).sum()) > 300
    mistake = shown.screenshot(".pictures img")
    assert 60 <= min(mistake.size) <= max(mistake.size) <= 90
    assert len(np.unique(np.asarray(mistake).reshape(-1, 3), axis=0)) > 20


def test_runs_are_folded(open_page, page):
    shown = open_page(page).page
    listed = shown.locator("#s1 details", has_text="The 12 runs and their folders")
    assert not listed.locator("table").is_visible()
    listed.locator("summary").click()
    assert listed.locator("table").is_visible()
