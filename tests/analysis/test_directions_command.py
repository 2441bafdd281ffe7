"""`isda directions` as a user runs it, and the page that it writes."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from small_runs import isda


@pytest.fixture(scope="module")
def written(small_run, other_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("atlas")
    words = ["--directions", 2, "--images", 3, "--judge", other_run, "--out", folder / "page.html"]
    out, err, code = isda("directions", small_run, *words, "--json", folder / "atlas.json", "--device", "cpu")
    assert code is None, err
    return out, (folder / "page.html").read_text(), json.loads((folder / "atlas.json").read_text())


def test_the_table_the_page_and_the_json_agree(written):
    out, page, record = written
    assert [view["name"] for view in record["classes"]] == list("0123456789")
    for view in record["classes"]:
        assert len(view["directions"]) == 2
        for number, one in enumerate(view["directions"], start=1):
            assert len(one["low"]) == len(one["high"]) == 3
            assert not set(one["low"]) & set(one["high"])
            assert len(one["landings"]) == len(record["deviations"])
            assert all(sum(landing["probabilities"]) == pytest.approx(1) for landing in one["landings"])
            assert 0 < one["judged"]["p"] <= one["judged"]["corrected_p"] <= 1
            heading = f"{view['name']}, direction {number}: {100 * one['share']:.1f}% of the variance"
            assert heading in page
            assert f"images {', '.join(map(str, one['low']))}." in page
    assert "separates the two ends of" in out
    assert "separates the two ends of" in page
    assert f"{100 * record['classes'][0]['directions'][0]['share']:.1f}%" in out


def test_the_images_of_the_page_are_those_of_the_data_set(written, seen):
    _, page, record = written
    shown = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="training image (\d+), (\d)" width="64"', page)
    assert len(shown) == page.count("<img ")
    for data, index, name in shown[:100]:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        assert (pixels == seen.data.x_train[int(index), 0].numpy()[..., None]).all()
        assert int(seen.data.y_train[int(index)]) == int(name)
    # The strip on top begins with the most telling direction of the first class.
    first = record["classes"][0]
    telling = first["directions"][first["most_telling"]]
    assert [int(index) for _, index, _ in shown[:6]] == telling["low"] + telling["high"]


def test_the_page_is_one_file_without_scripts(written):
    _, page, _ = written
    assert not re.search(r"""<script|(?:src|href)="(?!data:|#)|url\(""", page)
    assert all(attributes.count('alt="') == 1 for attributes in re.findall(r"<img ([^>]*)>", page))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def test_images_are_enlarged_by_whole_factors_and_a_class_unfolds(browser, written, tmp_path, width, scheme):
    file = tmp_path / "page.html"
    file.write_text(written[1])
    context = browser.new_context(
        viewport={"width": width, "height": 844}, is_mobile=width < 600, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.goto(file.as_uri())
    shown = [page.locator(".telling img").nth(number) for number in range(60)]
    assert page.locator(".telling img").count() == len(shown)
    assert {(box["width"], box["height"]) for box in (image.bounding_box() for image in shown[:12])} == {(64, 64)}
    rendering = "[...document.images].every(image => getComputedStyle(image).imageRendering == 'pixelated')"
    assert page.evaluate(rendering)
    assert page.locator("details.class[open]").count() == 0
    page.locator(".telling").get_by_role("link", name="3", exact=True).click()
    assert page.locator("details.class[open] > summary strong").all_inner_texts() == ["3"]
    assert page.get_by_role("heading", name="3, direction 1").is_visible()
    page.locator("#class3 details summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    context.close()


def test_classes_with_few_images_are_said(small_run, tmp_path):
    words = ["--most", 10, "--classes", 3, "--out", tmp_path / "one.html"]
    out, _, code = isda("directions", small_run, *words)
    assert code is None
    assert "3: 1 image: at least 2 are needed" in out
    assert "no direction" in (tmp_path / "one.html").read_text()
    out, _, _ = isda("directions", small_run, *words[:1], 30, *words[2:])
    assert "3: 3 images have only 2 directions, not 5." in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--classes", "cat"], "classes must be one of 0, 1,"),
        (["--directions", 0], "directions must be from 1 to 100, got 0"),
        (["--images", 61], "images must be from 1 to 60, got 61"),
        (["--judge", "nowhere"], "nowhere"),
        (["--most", 3], "most must be at least 10, one image of each class, got 3"),
    ],
)
def test_bad_words_are_refused_in_a_sentence(small_run, tmp_path, words, told):
    _, _, code = isda("directions", small_run, *words, "--out", tmp_path / "page.html")
    assert told in str(code)
    assert not (tmp_path / "page.html").exists()


def test_photographs_of_any_size_are_shown_small(tmp_path):
    chance = np.random.default_rng(0)
    for part, count in (("train", 4), ("test", 1)):
        for name in ("cats", "dogs"):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                size = (90 + 10 * number, 120, 3)
                Image.fromarray(chance.integers(0, 255, size, dtype=np.uint8)).save(folder / f"{number}.png")
    words = [
        "--network",
        "resnet-8",
        "--width",
        "0.25",
        "--augment",
        "imagenet",
        "--epochs",
        "1",
        "--batch-size",
        "4",
        "--threads",
        "1",
    ]
    _, err, code = isda("train", "--data", tmp_path / "photos", *words, "--out", tmp_path / "run")
    assert code is None, (err, code)
    page = tmp_path / "page.html"
    _, err, code = isda("directions", tmp_path / "run", "--directions", 1, "--images", 2, "--out", page)
    assert code is None, (err, code)
    data = re.search(r'src="data:image/webp;base64,([^"]+)"', page.read_text()).group(1)
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (112, 112)
    assert 'width="64" height="64"' in page.read_text()
