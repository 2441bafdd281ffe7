"""The page of `isda map` in a browser: what it says of an image against the network, errors, keys, many points."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from isda.lab.analysis.maps import evaluation_features
from isda.lab.analysis.maps.page import GRID, MOST_THUMBNAILS, FeatureMap, grid_positions, thumbnail_sheet, write_maps
from isda.lab.tasks.classification.trained import load_classifier
from small_runs import isda


@pytest.fixture(scope="module")
def written(small_run, other_run, tmp_path_factory):
    """The file of two runs, and the features and predictions of both."""
    file = tmp_path_factory.mktemp("map") / "map.html"
    words = ["--images", 200, "--perplexity", 10, "--out", file, "--device", "cpu"]
    _, err, code = isda("map", small_run, other_run, *words)
    assert code is None, err
    return file, [evaluation_features(run, most=200) for run in (small_run, other_run)]


def data_of(file) -> dict:
    """What the script of the page reads."""
    text = re.search(r'<script type="application/json" id="map-data">(.*?)</script>', file.read_text(), re.DOTALL)
    return json.loads(text.group(1))


def test_predictions_and_images_are_those_of_the_network_and_the_data_set(written, small_run):
    file, (seen, _) = written
    data = data_of(file)
    assert data["labels"] == seen.labels.tolist()
    trained = load_classifier(small_run)
    logits = trained.network(trained.pipeline(seen.images(torch.arange(200)))).double()
    assert data["maps"][0]["predicted"] == logits.argmax(1).tolist()
    confidence = 1000 * logits.softmax(1).max(1).values
    assert (torch.tensor(data["maps"][0]["confidence"]) - confidence).abs().max() < 0.51
    assert max(max(axis) for axis in data["maps"][0]["positions"]) == GRID


def test_positions_keep_the_proportions_of_the_map():
    points = torch.randn(50, 2, dtype=torch.float64) * torch.tensor([3.0, 1.0])
    positions = grid_positions(points).double()
    assert (positions.min(), positions.max()) == (0, GRID)
    distances, drawn = (torch.pdist(x) for x in (points, positions))
    scale = GRID / float((points.max(0).values - points.min(0).values).max())
    assert (drawn - scale * distances).abs().max() < 2**0.5 + 1e-9  # two ends, each rounded by half a unit


def test_the_file_is_self_contained_and_nothing_in_it_ends_the_data_early(written):
    text = written[0].read_text()
    assert not re.search(r"""(?:src|href)="(?!data:|#)|url\(|https?://""", text)
    assert text.count("<script") == text.count("</script>") == 2


class MapPage:
    """The page in a browser that is offline."""

    def __init__(self, browser, file, width: int, scheme: str) -> None:
        size = {"width": width, "height": 844}
        self.context = browser.new_context(viewport=size, is_mobile=width < 600, color_scheme=scheme, offline=True)
        self.page, self.complaints = self.context.new_page(), []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        # Errors only: Chromium also comments on the tests' own reading of pixels.
        self.page.on("console", lambda message: self.complaints.extend([message.text] * (message.type == "error")))
        self.page.goto(file.as_uri())

    def point_at(self, panel: int, row: int) -> None:
        """Move the mouse to an image."""
        canvas = self.page.locator(".box > canvas").nth(panel)
        canvas.scroll_into_view_if_needed()
        at = self.page.evaluate(f"[panels[{panel}].x[{row}], panels[{panel}].y[{row}]]")
        canvas.hover(position={"x": at[0], "y": at[1]}, force=True)

    def card(self, panel: int) -> list[str]:
        """The lines of the visible card."""
        return self.page.locator(".card").nth(panel).locator("p").all_inner_texts()

    def dark_pixels(self, panel: int) -> int:
        """Pixels of the map in the colour of rings, the ink of the page."""
        script = """(number) => {
          const { picture } = panels[number];
          const rgb = [1, 3, 5].map((i) => parseInt(colours.ink.slice(i, i + 2), 16));
          const { data } = picture.getContext("2d").getImageData(0, 0, picture.width, picture.height);
          let count = 0;
          for (let i = 0; i < data.length; i += 4) {
            count += data[i + 3] === 255 && rgb.every((value, k) => data[i + k] === value);
          }
          return count;
        }"""
        return self.page.evaluate(script, panel)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def test_a_person_points_at_images_marks_errors_and_uses_keys(browser, written, width, scheme):
    file, runs = written
    shown = MapPage(browser, file, width, scheme)
    page, data = shown.page, data_of(file)
    # A point with nothing else near it.
    points = np.array(data["maps"][0]["positions"]).T
    gaps = np.abs(points[:, None] - points[None]).max(-1) + GRID * np.eye(len(points))
    row = int(gaps.min(1).argmax())
    shown.point_at(0, row)
    titles = [f"isda, λ0 = 1, seed {seed}" for seed in (0, 1)]
    lines = [f"test image {int(runs[0].indices[row])}", f"class: {int(runs[0].labels[row])}"]
    for title, run in zip(titles, runs, strict=True):
        wrong = " (error)" if run.predicted[row] != run.labels[row] else ""
        confidence = round(1000 * float(run.confidence[row])) / 10
        lines.append(f"{title}: {int(run.predicted[row])}, {confidence:.1f}%{wrong}")
    assert shown.card(0) == lines
    # The enlarged image is that of the data set: 8 x 8 pixels, 12 times.
    enlarged = """() => { const canvas = document.querySelector(".card:not([hidden]) canvas");
      return [canvas.width, [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]]; }"""
    side, pixels = page.evaluate(enlarged)
    grey = np.array(pixels).reshape(side, side, 4)[..., 0]
    image = runs[0].images(torch.tensor([row]))[0, 0].numpy()
    assert (grey == image.repeat(12, 0).repeat(12, 1)).all()
    # Rings can be switched off, and the class and errors alone can be shown.
    marked = shown.dark_pixels(0)
    page.get_by_label("mark errors with a ring").uncheck()
    assert shown.dark_pixels(0) < marked
    page.get_by_label("mark errors with a ring").check()
    assert shown.dark_pixels(0) == marked
    visible = "panels.map((panel) => data.labels.filter((label, row) => visible(panel, row)).length)"
    page.get_by_label("show errors only").check()
    errors = [int((run.predicted != run.labels).sum()) for run in runs]
    assert page.evaluate(visible) == errors
    assert f"{titles[0]}: {errors[0]} of 200 images wrongly predicted." in page.locator("figcaption").first.inner_text()
    page.get_by_label("show errors only").uncheck()
    page.get_by_label("class", exact=True).select_option("7")
    assert page.evaluate(visible) == [int((runs[0].labels == 7).sum())] * 2
    page.get_by_label("class", exact=True).select_option("all classes")
    # Keys: the first image, then one to the right of it; errors by buttons; Escape.
    page.locator(".box > canvas").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("chosen") == 0
    for key, sign in (("ArrowRight", 1), ("ArrowLeft", -1)):
        x = page.evaluate("panels[0].x[chosen]")
        page.keyboard.press(key)
        assert sign * (page.evaluate("panels[0].x[chosen]") - x) > 0
    assert page.locator("#status").inner_text().startswith("test image ")
    page.keyboard.press("Escape")
    assert page.locator(".card:not([hidden])").count() == 0
    either = torch.stack([run.predicted != run.labels for run in runs]).any(0).nonzero().flatten().tolist()
    for expected in (either[0], either[1]):
        page.get_by_role("button", name="Next error").click()
        assert page.evaluate("chosen") == expected
    page.get_by_role("button", name="Previous error").click()
    assert page.evaluate("chosen") == either[0]
    assert "(error)" in page.locator("#status").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("#legend li").all_inner_texts() == ["wrong prediction", *"0123456789"]
    assert shown.complaints == []
    shown.context.close()


def test_of_more_images_than_fit_the_wrongly_predicted_ones_are_kept(written, monkeypatch):
    _, runs = written
    views = [FeatureMap(run, None, None, None) for run in runs]
    monkeypatch.setattr("isda.lab.analysis.maps.page.MOST_THUMBNAILS", 190)
    rows, sheet = thumbnail_sheet(views)
    wrong = (runs[0].predicted != runs[0].labels) | (runs[1].predicted != runs[1].labels)
    assert len(rows) == 190
    assert set(wrong.nonzero().flatten().tolist()[:190]) <= set(rows)
    assert rows == sorted(rows)
    columns = round(190**0.5)
    slot = rows.index(int(wrong.nonzero()[0]))
    top, left = slot // columns * 10, slot % columns * 10
    assert torch.equal(sheet[0, top : top + 8, left : left + 8], runs[0].images(wrong.nonzero()[0])[0, 0])


def test_tens_of_thousands_of_points_answer_the_pointer(browser, written, tmp_path):
    """The same images many times, on a random map."""
    rows = torch.arange(20_000) % 200
    run = written[1][0]
    tensors = {name: getattr(run, name)[rows] for name in ("features", "labels", "predicted", "confidence", "indices")}
    points = torch.randn(20_000, 2, dtype=torch.float64)
    view = FeatureMap(replace(run, **tensors), points, None, None)
    file = tmp_path / "many.html"
    write_maps(file, "Many", [view], 10, "isda map")
    assert len(data_of(file)["thumbnails"]["rows"]) == MOST_THUMBNAILS
    shown = MapPage(browser, file, 1280, "light")
    row = int(points[:, 0].argmax())
    shown.point_at(0, row)
    assert shown.card(0)[0] == f"test image {int(run.indices[row % 200])}"
    # A thousand moves of the pointer search their neighbourhood only, not all points.
    looked = """() => { let most = 0;
      for (let i = 0; i < 1000; i++) {
        const [x, y] = [panels[0].x[i], panels[0].y[i]];
        let count = 0;
        for (const dy of [-REACH, 0, REACH]) for (const dx of [-REACH, 0, REACH]) {
          count += (panels[0].cells.get(cellOf(x + dx, y + dy)) || []).length;
        }
        if (nearest(panels[0], x, y) < 0) throw new Error("a point does not find itself");
        most = Math.max(most, count);
      }
      return most; }"""
    assert shown.page.evaluate(looked) < 2000
    assert shown.complaints == []
    shown.context.close()
