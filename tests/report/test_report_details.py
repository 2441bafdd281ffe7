"""Figures per class and pictures, of a task that is nowhere installed; whatever else is in the files is left out."""

import base64
import io
import json
import os
import re

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from isda.lab.engine import find_runs
from isda.lab.report.page import render_report
from isda.lab.report.per_class import MOST_CLASSES, class_figures, draw_bars
from isda.lab.report.pictures import MOST_BYTES, MOST_PER_RUN, MOST_PIXELS, picture_figures, png_size, run_pictures
from isda.lab.report.summary import summarise
from run_folders import write_strangers_run

ROAD = {"pixel-cross-entropy": (0.91, 0.92, 0.93), "soft": (0.94, 0.96, 0.95)}
METHODS = tuple(ROAD)


def write(top, per_class=None):
    """Two methods on three seeds; `per_class` makes what result.json says of a method and seed."""
    for method in METHODS:
        for seed in range(3):
            folder = write_strangers_run(top / method / f"seed-{seed}", method, seed, 0.7 + 0.01 * seed)
            if per_class is not None:
                add(folder, per_class(method, seed))
    return top


def add(folder, content):
    file = folder / "result.json"
    written = json.dumps(json.loads(file.read_text()) | {"per_class": content})
    # JSON has no infinity, but numbers that are too large for a float.
    file.write_text(written.replace("Infinity", "1e999"))


def compared(top):
    (comparison,) = summarise(find_runs([top]))
    return comparison


def page(top):
    return render_report(find_runs([top]), top, None, "isda report")


def png(width=30, height=20, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def ious(method, seed):
    return {"iou": {"road": ROAD[method][seed], "train": None if seed else 0.25, "sky": 0.5}}


# -- figures per class ------------------------------------------------------------------------------------------------


def test_each_class_has_its_mean_and_interval_over_seeds(tmp_path):
    (figure,) = class_figures(compared(write(tmp_path, ious)))
    assert (figure.classes, figure.left_out) == (("road", "train", "sky"), 0)
    for method, values in ROAD.items():
        low, high = stats.t.interval(0.95, df=2, loc=np.mean(values), scale=stats.sem(values))
        mean, half_width = figure.values[method]["road"]
        assert (mean - half_width, mean + half_width) == pytest.approx((low, high))
        assert figure.values[method]["train"] == (0.25, None)
        assert figure.values[method]["sky"] == pytest.approx((0.5, 0.0))


def test_the_title_is_written_as_in_the_figure_over_all_classes(tmp_path):
    top = write(tmp_path, lambda method, seed: ious(method, seed) | {"recall": {"road": 0.5}})
    assert [figure.title for figure in class_figures(compared(top))] == ["IoU", "recall"]


def test_the_page_has_bars_and_a_table(tmp_path):
    text = page(write(tmp_path, ious))
    assert "<h3>Per class</h3>" in text
    assert "pixel-cross-entropy, road: 0.920 ± 0.025" in text
    assert "in each row from above pixel-cross-entropy, soft.</figcaption>" in text
    table = re.search(r"<table><caption><span>IoU per class.*?</table>", text, re.S).group()
    assert re.findall(r'<th scope="row">(\w+)</th>', table) == ["road", "train", "sky"]
    assert '<td class="n">0.250</td>' in table
    assert len(re.findall(r'class="bar"', text)) == 2 * len(METHODS) * 3  # once for desks, once for phones


def test_bars_begin_at_zero_and_end_at_the_mean(tmp_path):
    (figure,) = class_figures(compared(write(tmp_path, ious)))
    drawn = draw_bars(figure, {method: index for index, method in enumerate(METHODS)}, "x", 800)
    bars = [
        (float(x), float(width))
        for x, width in re.findall(r'class="bar" x="([\d.]+)" y="[\d.]+" width="([\d.]+)', drawn)
    ]
    assert len({x for x, _ in bars}) == 1
    (road, train, sky), (soft_road, _, _) = [width for _, width in bars[:3]], [width for _, width in bars[3:]]
    assert train / sky == pytest.approx(0.5, abs=0.01)
    assert road / soft_road == pytest.approx(0.92 / 0.95, abs=0.01)


def test_runs_without_them_show_nothing(tmp_path):
    assert "Per class" not in page(write(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        None,
        "road",
        [0.5],
        {"iou": 3},
        {"iou": ["road"]},
        {"iou": {"road": "0.5", "sky": True, "car": None, "bus": [1]}},
        {"iou": {"road": 1e999, "sky": -1e999}},
        {},
    ],
)
def test_what_is_no_figure_per_class_is_left_out(tmp_path, content):
    top = write(tmp_path, lambda method, seed: content)
    assert class_figures(compared(top)) == []
    assert "Per class" not in page(top)


def test_names_are_text_whatever_they_hold(tmp_path):
    evil = '</title><script>alert("x")</script>'
    text = page(write(tmp_path, lambda method, seed: {evil: {evil: 0.5, "a" * 300: 0.1}}))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_a_thousand_classes_do_not_make_a_page_that_nobody_can_open(tmp_path):
    many = {f"class {index}": 0.5 for index in range(1000)}
    top = write(tmp_path, lambda method, seed: {f"figure {number}": many for number in range(20)})
    figures = class_figures(compared(top))
    assert len(figures) == 4
    assert {len(figure.classes) for figure in figures} == {MOST_CLASSES}
    assert f"{1000 - MOST_CLASSES} further classes are not shown." in page(top)


@pytest.mark.parametrize("value", [0.0, -0.5, 55.0])
def test_any_value_can_be_drawn(tmp_path, value):
    text = page(write(tmp_path, lambda method, seed: {"gain": {"road": value}}))
    assert "nan" not in re.search(r'<svg[^>]*id="c1-class1".*?</svg>', text, re.S).group()


# -- pictures ----------------------------------------------------------------------------------------------------


def put(folder, **files):
    (folder / "pictures").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / "pictures" / f"{name}.png").write_bytes(content)


def test_pictures_of_one_run_of_each_method_are_embedded_as_they_are(tmp_path):
    top = write(tmp_path)
    for number, method in enumerate(METHODS):
        put(top / method / "seed-1", second=png(seed=10 + number), first=png(seed=number))
        put(top / method / "seed-2", first=png(seed=99))
    text = page(top)
    embedded = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', text)]
    # Those of the same name below one another, so that methods can be compared.
    assert embedded == [png(seed=0), png(seed=1), png(seed=10), png(seed=11)]
    captions = re.findall(r"<figcaption>((?:first|second)[^<]*)</figcaption>", text)
    assert captions == [f"{name}: {method}, seed 1." for name in ("first", "second") for method in METHODS]
    assert 'width="30" height="20"' in text


def test_no_more_than_a_few_and_the_page_says_so(tmp_path):
    top = write(tmp_path)
    put(top / "soft" / "seed-0", **{f"picture-{index}": png(seed=index) for index in range(MOST_PER_RUN + 3)})
    text = page(top)
    assert text.count("data:image/png") == MOST_PER_RUN
    assert "3 further files in the folders of these runs" in text


def test_a_comparison_embeds_no_more_than_its_bound(tmp_path, monkeypatch):
    top = write(tmp_path)
    put(top / "soft" / "seed-0", a=png(seed=1), b=png(seed=2))
    monkeypatch.setattr("isda.lab.report.pictures.MOST_BYTES_TOGETHER", len(png(seed=1)))
    assert page(top).count("data:image/png") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<svg onload='alert(1)'></svg>",
        b"\xff\xd8\xff\xe0 JFIF",
        png()[:-5],
        png() + b"<script>",
        png()[:16] + (MOST_PIXELS).to_bytes(4, "big") + (2).to_bytes(4, "big") + png()[24:],
        png()[:16] + bytes(8) + png()[24:],
        png() + bytes(MOST_BYTES) + png()[-12:],
    ],
    ids=["empty", "svg", "jpeg", "cut", "more behind", "too many pixels", "no pixels", "too large"],
)
def test_what_is_no_png_of_bounded_size_is_left_out(tmp_path, content):
    top = write(tmp_path)
    put(top / "soft" / "seed-0", bad=content)
    assert picture_figures(compared(top)) is None
    assert "Pictures" not in page(top)
    put(top / "soft" / "seed-0", good=png())
    text = page(top)
    assert text.count("data:image/png") == 1
    assert "1 further file in the folders of these runs" in text


def test_links_folders_and_pipes_are_not_followed(tmp_path):
    top = write(tmp_path / "runs")
    (tmp_path / "secret.png").write_bytes(png())
    folder = top / "soft" / "seed-0" / "pictures"
    put(folder.parent)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    (top / "soft" / "seed-1" / "pictures").symlink_to(folder)
    runs = find_runs([top / "soft"])
    assert [run_pictures(run) for run in runs] == [([], 3), ([], 0), ([], 0)]


def test_names_of_pictures_are_text(tmp_path):
    top = write(tmp_path)
    put(top / "soft" / "seed-0", **{'"><img src=x onerror=alert(1)>': png()})
    text = page(top)
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_the_size_of_a_png_is_the_one_in_its_header():
    assert png_size(png(31, 17)) == (31, 17)
