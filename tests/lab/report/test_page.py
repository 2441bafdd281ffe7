"""The page as text: one valid file, nothing loaded, everything escaped, everything there."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from isda.lab.engine import Figure, find_runs
from isda.lab.engine.search import MethodSearchRecord, SearchedSetting, SearchRecord, Trial
from isda.lab.report import load
from isda.lab.report.page import write_report
from isda.lab.report.predictions import comparison_predictions
from isda.lab.report.searches import search_table
from run_folders import drawn_predictions, leave_predictions

VOID = {"meta", "input", "img"}
NASTY = "<script>alert('x')</script>&\"<b>$x"


class Page(HTMLParser):
    """Collects elements and visible text, and insists that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.headline = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len({key for key, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h1":
            self.headline += data
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture
def written(tmp_path):
    """Write the page of folders of runs, and read it."""

    def write(*folders, **changes):
        write_report(find_runs(folders) if folders else [], tmp_path / "out" / "report.html", **changes)
        return (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

    return write


def test_the_page_opens_with_the_finding_and_has_every_part(written, runs_folder):
    page = Page(written(runs_folder))
    comparison = load(runs_folder)
    assert page.headline == comparison.finding()
    assert page.headline.startswith("ISDA has a lower test error: -0.7 points (95% interval ")
    for words in (
        "20 epochs · 5,000 training images · measured on 10,000 test images · 3 methods, 12 runs",
        comparison.table().caption,
        f"−0.73 ± {comparison.differences['isda'].half_width:.2f}",
        "Unfinished, and in no mean or difference: isda-tilted seed 3 (epoch 12 of 20).",
        "thin lines that end in a circle are unfinished runs",
        "Training loss over the epochs",
        "test calibration error, %",
        "method_options",
        "The 12 runs and their folders",
        "Made by isda report ../../",
    ):
        assert words in page.text


def test_nothing_is_loaded_from_anywhere_and_there_is_no_script(written, runs_folder):
    text = written(runs_folder)
    assert not re.search(r"//\w+\.\w+(?!.*xmlns)|@import|<script", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    page = Page(text)
    assert not {"link", "iframe", "object", "embed", "base"} & {name for name, _ in page.elements}
    references = [attributes["xlink:href"] for _, attributes in page.elements if "xlink:href" in attributes]
    assert all(reference.startswith("#") for reference in references)


def test_whatever_a_user_wrote_is_escaped(written, make_run, tmp_path):
    for seed in (0, 1):
        for method in ("cross-entropy", NASTY):
            strange = {"data": NASTY, "network": NASTY, "scale": NASTY, "evaluated_on": NASTY, NASTY: NASTY}
            make_run(
                tmp_path / "runs" / f"{len(method)}-{seed}", method, seed, method_options={NASTY: NASTY}, **strange
            )
    text = written(tmp_path / "runs", title=NASTY, command=NASTY)
    page = Page(text)
    assert not page.all("script")
    assert not page.all("b")
    assert page.text.count(NASTY) > 8


def test_several_comparisons_are_sections_with_a_finding_each(written, runs_folder, make_run, tmp_path):
    make_run(tmp_path / "more" / "a", data="svhn")
    page = Page(written(runs_folder, tmp_path / "more"))
    assert page.headline == "2 comparisons"
    assert [a["href"] for a in page.all("a")] == ["#s1", "#s2"]
    assert [a["id"] for a in page.all("section")] == ["s1", "s2"]
    assert load(runs_folder).finding() in page.text
    assert "ISDA has a test error in % of" in page.text
    assert Page(written(runs_folder, tmp_path / "more", title="All of them")).headline == "All of them"


def test_runs_of_a_task_that_is_nowhere_installed_are_shown(written, strangers_folder):
    page = Page(written(strangers_folder))
    assert page.headline.startswith("soft has a higher mean IoU: +0.0047")
    assert "Boundary F1 over the epochs" in page.text
    assert "latency, ms" in page.text
    assert "points" not in page.text


@pytest.mark.parametrize(
    "stored", [{}, {"per_class": {"error": {}}}, {"per_class": {"iou": {"road": 0.9, "car": None}}}]
)
def test_figures_of_classes_may_be_missing(written, make_run, tmp_path, stored):
    for seed in (0, 1):
        folder = make_run(tmp_path / "runs" / str(seed), "isda", seed)
        result = (folder / "result.json").read_text()
        (folder / "result.json").write_text(json.dumps(json.loads(result) | stored))
    assert ("Iou of 1 classes" in Page(written(tmp_path / "runs")).text) == ("iou" in stored.get("per_class", {}))


def test_pictures_in_run_folders_are_shown(written, make_run, tmp_path):
    folder = make_run(tmp_path / "runs" / "a", "isda")
    (folder / "pictures").mkdir()
    Image.new("RGB", (30, 20), "red").save(folder / "pictures" / "samples.png")
    page = Page(written(tmp_path / "runs"))
    (image,) = page.all("img")
    assert (image["width"], image["height"], image["alt"]) == ("30", "20", "samples")
    assert image["src"].startswith("data:image/png;base64,")


# -- predictions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def predicted(make_run, tmp_path):
    """Two methods with two runs each that have left predictions."""
    for number, method in enumerate(("cross-entropy", "isda")):
        for seed in range(2):
            leave_predictions(make_run(tmp_path / "runs" / f"{method}-{seed}", method, seed), 10 * number + seed)
    return tmp_path / "runs"


def test_predictions_become_calibration_confusions_and_mistakes(written, predicted):
    page = Page(written(predicted))
    assert "(overconfident by " in page.text or "(underconfident by " in page.text
    assert "cross-entropy: classes (rows) and predictions (columns), in percent of the images of a class." in page.text
    assert len(page.all("img")) == 16
    assert "of 2 runs" in page.text


def test_predictions_are_pooled_over_the_runs_of_a_method(predicted):
    first, second = comparison_predictions(load(predicted))
    drawn = [drawn_predictions(10 + seed) for seed in range(2)]
    wrong = torch.stack([run.predicted != run.labels for run in drawn])
    assert float(second.right.mean()) == pytest.approx(1 - wrong.double().mean().item())
    shares = torch.tensor([share for _, _, share in second.bins()])
    assert float(shares.sum()) == pytest.approx(1)
    accuracy = sum(accuracy * share for _, accuracy, share in second.bins())
    assert accuracy == pytest.approx(float(second.right.mean()))
    confusion = second.confusion()
    assert torch.allclose(confusion.sum(1), torch.ones(10, dtype=torch.double))
    of_cats = torch.cat([run.predicted[run.labels == 3] for run in drawn])
    assert float(confusion[3, 5]) == pytest.approx(float((of_cats == 5).double().mean()))
    (top,) = second.mistakes(1)
    assert top.confidence == pytest.approx(
        max(float(run.confidence[of].max()) for run, of in zip(drawn, wrong, strict=True))
    )
    assert first.label == "cross-entropy"
    assert 1 <= top.wrong <= 2


# -- searches -------------------------------------------------------------------------------------------------------

STRENGTH = SearchedSetting(name="lambda_0", of_method=True, values=(0.5, 1.0, 2.0))


def a_search(figures):
    trials = [
        Trial(
            number=number,
            point={"lambda_0": strength},
            values={} if figure is None else {"100": figure, "101": figure + 0.2},
            problem="" if figure is not None else "seed 100: the loss became infinite",
        )
        for number, (strength, figure) in enumerate(zip(STRENGTH.values, figures, strict=True))
    ]
    best = min((trial for trial in trials if trial.values), key=lambda trial: trial.value, default=None)
    method = MethodSearchRecord(
        method="isda",
        held_out="259 of 1,297 training images",
        searched=(STRENGTH,),
        trials=tuple(trials),
        chosen=best and best.point,
        chosen_method="isda",
        notes=("the smallest value tried",) if best is trials[0] else (),
    )
    figure = Figure(name="error", metric="held-out/error", title="held-out error", unit="%")
    settings = {"data": "digits", "network": "fast-cnn", "scale": "custom", "epochs": 2, "figure": figure}
    return SearchRecord(**settings, seeds=(100, 101), finished=True, methods=(method,))


def test_a_search_is_a_chart_and_a_table_of_its_trials(written):
    page = Page(written(searches=[a_search([3.0, 1.0, 2.0])]))
    assert page.headline == "isda: lambda_0=1 chosen after 3 trials"
    assert "Held-out error, % of isda against lambda_0: means of trials" in page.text
    assert "Held out: 259 of 1,297 training images." in page.text
    records = search_table(a_search([3.0, 1.0, None])).records()
    assert [record["note"] for record in records] == ["", "chosen", "seed 100: the loss became infinite"]
    assert records[1]["error_mean"] == pytest.approx(1.1)


def test_choices_at_the_edge_and_searches_without_a_choice_say_so(written):
    assert "chosen after 3 trials, the smallest value tried" in written(searches=[a_search([1.0, 2.0, None])])
    assert Page(written(searches=[a_search([None] * 3)])).headline == "isda: no choice after 3 trials"


def test_a_search_and_its_final_runs_are_two_sections(written, runs_folder):
    page = Page(written(runs_folder, searches=[a_search([3.0, 1.0, 2.0])]))
    assert page.headline == "1 comparison and 1 search"
    assert len(page.all("section")) == 2
