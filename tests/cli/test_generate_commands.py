"""Generators as a user has them: `isda generate train|evaluate|sample`, and their runs in `isda report`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from generative_runs import SMALL, SMALL_WORDS
from isda.lab.data import DataSet
from isda.lab.data.display import CELL, SHEET_GAP
from isda.lab.engine import train
from isda.lab.tasks.gan.settings import GANSettings
from isda.lab.tasks.gan.task import Generation
from small_runs import digits, isda

pytestmark = pytest.mark.filterwarnings("ignore:the generator has collapsed", "ignore:the discriminator tells")


def generate(*words: object) -> tuple[str, str, str | int | None]:
    return isda("generate", *words)


@pytest.fixture(scope="module")
def trained(finished_run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = [*SMALL_WORDS, "--method", "infogan", "--judge", finished_run, "--threads", 1]
    out, err, code = generate("train", *words, "--out", folder)
    assert code is None, err
    assert "FID on the judge's features" in out
    return folder


def test_a_finished_run_is_not_repeated_and_its_settings_are_its_own(trained):
    assert generate("train", "--resume", "--out", trained)[0].strip().endswith("is finished already")
    assert "holds a run with lr=0.0002, not 0.5" in generate("train", "--resume", "--out", trained, "--lr", 0.5)[2]


def test_evaluate_repeats_the_figures_of_the_run_and_takes_another_judge(trained, finished_run):
    out, _, code = generate("evaluate", trained, "--json", "-")
    assert code is None
    written, result = json.loads(out), json.loads((trained / "result.json").read_text())
    for name in ("fid", "kid", "diversity", "accuracy", "per_class", "judge_sha256"):
        assert written[name] == pytest.approx(result[name]) if name == "fid" else written[name] == result[name]
    other = json.loads(generate("evaluate", trained, "--seed", 5, "--judge", finished_run, "--json", "-")[0])
    assert other["judge_sha256"] == written["judge_sha256"]
    assert other["fid"] != written["fid"]
    table = generate("evaluate", trained)[0]
    assert "intended label seen by the judge, %" in table
    assert table.splitlines()[-1].split()[0] == digits().classes[-1]


def test_sample_draws_a_row_for_each_class_and_writes_images_with_labels(trained, tmp_path):
    words = ["--out", tmp_path / "grid.png", "--columns", 4, "--npz", tmp_path / "many.npz", "--per-class", 3]
    out, _, code = generate("sample", trained, *words, "--seed", 2)
    assert code is None
    assert "10 classes x 4 images by infogan" in out
    picture = Image.open(tmp_path / "grid.png")
    assert picture.size == tuple(count * (CELL + SHEET_GAP) + SHEET_GAP for count in (4, 10))
    with np.load(tmp_path / "many.npz") as stored:
        assert stored["images"].shape == (30, 8, 8, 1)
        assert stored["images"].dtype == np.uint8
        assert np.bincount(stored["labels"]).tolist() == [3] * 10
        assert tuple(stored["classes"]) == digits().classes
        first = stored["images"]
    generate("sample", trained, *words, "--seed", 3)
    with np.load(tmp_path / "many.npz") as stored:
        assert (stored["images"] != first).any()
    # The same seed draws the same picture.
    again = io.BytesIO((tmp_path / "grid.png").read_bytes())
    generate("sample", trained, *words[:4], "--seed", 3)
    assert (tmp_path / "grid.png").read_bytes() == again.getvalue()


def test_the_report_shows_figures_classes_and_grids(trained, tmp_path):
    _, err, code = isda("report", trained, "--out", tmp_path / "page.html")
    assert code is None, err
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    for words in ("1-generated", "2-real", "infogan", "intended label seen by the judge"):
        assert words in page


def test_methods_are_compared_although_they_have_recipes_of_their_own(finished_run, tmp_path):
    for method in ("cgan", "wgan:n_critic=1"):
        settings = GANSettings(**SMALL, method=method, judge=str(finished_run))
        train(Generation().resolve(settings, digits()), digits(), tmp_path / method[:4], task=Generation())
    (comparison,) = json.loads(isda("report", tmp_path, "--out", tmp_path / "page.html", "--json", "-")[0])
    assert [row["method"] for row in comparison["methods"]] == ["cgan", "wgan"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "wgna"], "did you mean 'wgan'"),
        (["--method", "wgan:penalty=-1"], "penalty must lie in 0..1e6, got -1.0"),
        (["--method", "wgan:clip=0"], "clip must be more than 0 and at most 100, got 0.0"),
        (["--method", "wgan:n_critic=0"], "n_critic must lie in 1..1000, got 0"),
        (["--method", "infogan:code_weight=nan"], "code_weight must lie in 0..100, got nan"),
        (["--method", "cgan:clip=1"], "method cgan has no options, got 'clip'"),
        (["--method", "wgan", "--batch-size", "25"], "batch_size must be a multiple of the 10 classes for method wgan"),
        (["--batch-size", "101"], "batch_size must be from 1 to 100, the training images, got 101"),
        (["--network", "resnet-8"], "network must be dcgan for method acgan, got 'resnet-8'"),
        (["--width", "0"], "width must be a positive number, got 0.0"),
        (["--noise", "0"], "noise must be an integer from 1 to 10^9, got 0"),
        (["--judge", "nowhere"], "no run in nowhere"),
        (["--labels", "0"], "labels must be from 1 to 1297"),
        (["--held-out", "1297"], "held_out must be from 0 to 1296"),
        (["--held-out", "1"], "held_out must be at least 2 for generators"),
        (["--ema", "2"], "ema must lie strictly between 0 and 1"),
        (["--evaluate-every", "0"], "evaluate_every must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_folder_is_made(tmp_path, words, message):
    _, _, code = generate("train", *SMALL_WORDS, *words, "--out", tmp_path / "run")
    assert isinstance(code, str)
    assert message in code
    assert code.count("\n") == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words", [["--compile"], ["--channels-last"], ["--precision", "float16"], ["--nesterov", "True"]]
)
def test_what_generators_do_not_support_is_not_offered(tmp_path, words):
    _, err, code = generate("train", *SMALL_WORDS, *words, "--out", tmp_path / "run")
    assert (code, words[-1] in err) == (2, True)
    assert not {"--compile", "--channels-last", "float16,"} & set(generate("train", "--help")[0].split())


def test_precisions_of_generators_are_checked_from_python_too():
    with pytest.raises(ValueError, match="precision must be one of float32, float64, bfloat16, got 'float16'"):
        Generation().resolve(GANSettings(**SMALL, precision="float16"), digits())


def test_runs_of_other_tasks_and_absurd_numbers_are_refused(trained, finished_run, tmp_path):
    assert "must be of a generator, got the task 'classification'" in generate("sample", finished_run)[2]
    assert "must be of a generator, got the task 'classification'" in generate("evaluate", finished_run)[2]
    assert "must be of a classifier of images, got the task 'generation'" in isda("evaluate", trained)[2]
    assert "must be of a classifier of images" in generate("evaluate", trained, "--judge", trained)[2]
    for name, told in (("--columns", "from 1 to 100"), ("--per-class", "from 1 to 1000000"), ("--seed", "from 0")):
        assert told in generate("sample", trained, name, -1, "--out", tmp_path / "none.png")[2]
    assert not (tmp_path / "none.png").exists()


def test_images_of_other_sizes_and_classes_without_images_are_refused():
    data, task = digits(), Generation()
    settings = task.settings_type(epochs=1)
    wide = data.x_train[..., :7], data.x_test[..., :7]
    with pytest.raises(ValueError, match="images must be of 8x8, 28x28, 32x32 pixels for generators, those of wide"):
        task.resolve(settings, DataSet("wide", wide[0], data.y_train, wide[1], data.y_test, data.classes))
    more = DataSet("more", data.x_train, data.y_train, data.x_test, data.y_test, (*data.classes, "ten"))
    with pytest.raises(ValueError, match="every class must have training images to be generated, 'ten' of more has"):
        task.resolve(settings, more)
