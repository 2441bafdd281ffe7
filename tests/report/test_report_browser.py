"""The page in a real browser: drawn, light and dark, on a desk and on a phone, with and without its script."""

import numpy as np
import pytest

from isda.engine.folder.reading import find_runs
from isda.report.page import write_report

PAPER = {"light": (0xFD, 0xFC, 0xF9), "dark": (0x16, 0x18, 0x1B)}
CURVES = {
    "light": [(0x63, 0x68, 0x6F), (0x1A, 0x55, 0xD9), (0xD6, 0x5D, 0x0E)],
    "dark": [(0xA7, 0xAD, 0xB5), (0x5F, 0x7D, 0xFF), (0xCC, 0x7A, 0x30)],
}
WIDTHS = {"desk": 1200, "phone": 375}


@pytest.fixture(scope="module")
def page(runs_folder, strangers_folder, tmp_path_factory, make_run):
    """The usual runs, a section with names that are too long for a phone, and one with a single small chart."""
    top = tmp_path_factory.mktemp("page")
    options = {"covariance": "low_rank", "decay": 0.999, "a_very_long_name_of_an_option_of_a_method": 1}
    for name, settings in (("a", {}), ("b", options)):
        make_run(top / name, "isda", data="a-data-set-with-a-name-of-many-letters", method_options=settings)
    write_report(find_runs([runs_folder, top, strangers_folder]), top / "report.html")
    return top / "report.html"


def near(image, colour):
    """How many pixels have the colour."""
    return int((np.abs(np.asarray(image).astype(int) - colour).max(axis=-1) <= 2).sum())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("place", ["desk", "phone"])
def test_curves_are_drawn_in_the_colours_of_the_scheme(browser, page, scheme, place):
    browser.open(page, WIDTHS[place], scheme, script=False)
    image = browser.screenshot("svg[id^='c1-headline']")
    assert image.width > 0.6 * min(WIDTHS[place], 800)
    assert near(image, PAPER[scheme]) > 0.7 * image.width * image.height
    for colour in CURVES[scheme]:
        assert near(image, colour) > 80
    forest = browser.screenshot("svg[id^='c1-forest']")
    for colour in CURVES[scheme][1:]:
        assert near(forest, colour) > 60
    assert near(browser.screenshot("#c1-curve2"), CURVES[scheme][1]) > 100


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_nothing_makes_the_page_scroll_sideways(browser, page, place):
    browser.open(page, WIDTHS[place])
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.evaluate("innerWidth") == WIDTHS[place]
    assert browser.evaluate("document.documentElement.scrollWidth") <= WIDTHS[place]
    # Whatever is wider lies in a box that scrolls by itself.
    beyond = """[...document.querySelectorAll("body *")]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll"))
        .map(e => e.outerHTML.slice(0, 90))"""
    assert browser.evaluate(beyond) == []


def test_results_fit_a_phone_and_captions_stay_in_view(browser, page):
    browser.open(page, 375)
    assert browser.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('#c1 .scroll'))") <= 8
    right = "Math.max(...[...document.querySelectorAll('caption span')].map(e => e.getBoundingClientRect().right))"
    assert browser.evaluate(right) <= 375


@pytest.mark.parametrize("place", ["desk", "phone"])
def test_text_of_charts_is_legible_and_inside_them(browser, page, place):
    browser.open(page, WIDTHS[place])
    boxes = """[...document.querySelectorAll("svg.chart")].filter(e => e.clientWidth).flatMap(chart => {
        const outer = chart.getBoundingClientRect();
        return [...chart.querySelectorAll("text")].map(text => {
            const box = text.getBoundingClientRect();
            const across = box.left >= outer.left - 1 && box.right <= outer.right + 1;
            return {size: 12 * outer.width / chart.viewBox.baseVal.width, text: text.textContent,
                    inside: across && box.top >= outer.top - 1 && box.bottom <= outer.bottom + 1};
        })})"""
    found = browser.evaluate(boxes)
    assert len(found) > 40
    assert min(text["size"] for text in found) >= 10.5
    assert max(text["size"] for text in found) <= 16
    assert [text["text"] for text in found if not text["inside"]] == []


def test_each_chart_is_shown_once(browser, page):
    for place, width in WIDTHS.items():
        browser.open(page, width)
        shown = browser.evaluate(
            "[...document.querySelectorAll('svg.chart')].filter(e => e.clientWidth).map(e => e.id)"
        )
        ending = "-phone" if place == "phone" else ""
        assert shown[:4] == [f"c1-forest{ending}", f"c1-headline{ending}", "c1-curve1", "c1-curve2"]


def test_the_key_hides_a_method_without_any_script(browser, page):
    browser.open(page, script=False)
    image = browser.screenshot("#c1-headline")
    browser.send("Emulation.setScriptExecutionDisabled", value=False)
    browser.evaluate("document.querySelector('#c1 .key input[data-method=\"1\"]').checked = false")
    without = browser.screenshot("#c1-headline")
    assert near(image, CURVES["light"][1]) > 300
    assert near(without, CURVES["light"][1]) == 0
    assert near(without, CURVES["light"][2]) > 300


def test_pointing_at_a_chart_reads_the_means(browser, page):
    browser.open(page)
    browser.evaluate("document.querySelector('#c1-headline').scrollIntoView({block: 'center'})")
    box = browser.evaluate(
        "(b => [b.x, b.y, b.width, b.height])(document.querySelector('#c1-headline').getBoundingClientRect())"
    )
    x, y, width, height = box
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x + width * 0.975, y=y + height / 2)
    text = browser.evaluate("document.querySelector('#c1-headline + .readout').textContent")
    means = browser.evaluate(
        "[...document.querySelectorAll('#c1-headline path.mean')].map(e => JSON.parse(e.dataset.points)['20'])"
    )
    first, second, third = (f"{mean:.4g}" for mean in means)
    assert text == f"Epoch 20: cross-entropy {first}, isda {second}, isda-tilted {third}"


def test_the_page_loads_nothing_and_raises_nothing(browser, page):
    browser.open(page)
    requested = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert requested == [page.resolve().as_uri()]
    assert not [e for e in browser.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
