"""The page as text: one valid file, nothing loaded, everything escaped, everything there."""

import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from isda.lab.engine import find_runs
from isda.lab.report.markup import Markup, join, tag
from isda.lab.report.page import write_report
from isda.lab.report.summary import summarise

VOID = {"meta", "input"}
NASTY = "<script>alert('x')</script>&\"<b>"


class Page(HTMLParser):
    """Collects elements and visible text, and insists that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len({key for key, _ in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def looks(text: str) -> set[tuple[str, str]]:
    """The colour of each label's mean curves, wherever they are drawn."""
    return set(re.findall(r'<g class="c(\d) m\d"><path class="mean" [^>]*data-label="([\w-]+)"', text))


@pytest.fixture
def written(tmp_path):
    """Write the page of a folder of runs and return its text."""

    def write(folder, **changes):
        write_report(find_runs([folder]), tmp_path / "out" / "report.html", **changes)
        return (tmp_path / "out" / "report.html").read_text(encoding="utf-8")

    return write


def test_the_page_is_well_formed_with_unique_ids_that_all_references_find(written, runs_folder, make_run, tmp_path):
    make_run(tmp_path / "more" / "a", data="svhn")
    write_report(find_runs([runs_folder, tmp_path / "more"]), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert max(ids.values()) == 1
    named = [word for _, a in page.elements for word in (a.get("aria-labelledby") or "").split()]
    clips = [a["clip-path"][5:-1] for _, a in page.elements if "clip-path" in a]
    links = [a["href"][1:] for a in page.all("a") if "download" not in a]
    assert named
    assert clips
    assert links == ["c1", "c2"]
    assert set(named + clips + links) <= set(ids)


def test_nothing_is_loaded_from_anywhere(written, runs_folder):
    text = written(runs_folder)
    assert not re.search(r"https?://|//\w+\.\w+|@import|fetch\(|XMLHttpRequest|import\(|WebSocket", text)
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {name for name, _ in page.elements}
    assert not any({"src", "srcset", "xlink:href", "style"} & set(attributes) for _, attributes in page.elements)


def test_whatever_a_user_wrote_is_escaped(written, make_run, tmp_path):
    for seed in (0, 1):
        for method in ("cross-entropy", NASTY):
            folder = tmp_path / "runs" / f"{'base' if method == 'cross-entropy' else '<i>'}-{seed}"
            strange = {"data": NASTY, "network": NASTY, "scale": NASTY, "evaluated_on": NASTY, NASTY: NASTY}
            make_run(folder, method, seed, method_options={NASTY: NASTY}, **strange)
            (folder / "environment.json").write_text(json.dumps({NASTY: NASTY}))
    text = written(tmp_path / "runs", title=NASTY, command=NASTY)
    page = Page(text)
    assert len(page.all("script")) == 1
    assert not page.all("b")
    assert not page.all("i")
    assert text.count("alert('x')") == 0
    assert page.text.count(NASTY) > 20


def test_every_part_is_there(written, runs_folder):
    page = Page(written(runs_folder))
    (comparison,) = summarise(find_runs([runs_folder]))
    mean, half = comparison.methods[1].difference
    assert mean == pytest.approx(-0.725, abs=0.005)  # a run is missing: its seed is estimated
    for words in (
        "3 methods compared on cifar10",
        "12 runs, 11 of them finished",
        "isda has 0.73 points lower test error than cross-entropy (simultaneous 95% interval "
        f"{-mean - half:.2f} to {-mean + half:.2f}, 4 paired seeds).",
        f"−0.73 ± {half:.2f}",
        "Differences in test error to cross-entropy on the same seed, in percentage points.",
        "simultaneous 95% confidence intervals (Dunnett, pooled over 3 methods x ",
        "Unfinished , and in no mean or difference: isda-tilted seed 3 (epoch 12 of 20).",
        "Test error over the epochs",
        "Training loss over the epochs",
        "Strength λ of ISDA over the epochs",
        "Mean margin variance over the epochs",
        "The 12 runs and their folders",
        "Test negative log-likelihood",
        "Test calibration error, %",
        "Test top-5 error, %",
        "method_options.bound",
        "What all runs share",
        "airplane, automobile, bird, cat, … (10 in all)",
        "Where they ran",
        "2.15.0",
        "epoch 12 of 20",
    ):
        assert words in page.text


def test_settings_are_those_that_were_used_not_the_words_that_asked_for_them(written, runs_folder):
    text = written(runs_folder)
    assert "method_options.bound" in text
    assert "settings.method" not in text


def test_every_table_and_figure_says_the_scale_or_is_about_settings(written, runs_folder):
    text = written(runs_folder)
    told = re.findall(r"<caption>.*?</caption>|<figcaption>.*?</figcaption>", text)
    assert len(told) == 11
    for words in told:
        assert "Scale small" in words or re.search("Settings|Environment", words)
    assert "Scale <strong>small: a tenth of the recipe" in text


def test_the_markup_says_what_things_are(written, runs_folder):
    page = Page(written(runs_folder))
    names = Counter(name for name, _ in page.elements)
    assert names["h1"] == names["main"] == names["header"] == names["footer"] == 1
    assert names["caption"] == names["table"]
    assert names["figcaption"] == names["figure"]
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    for attributes in page.all("svg"):
        assert attributes.get("role") == "img" or attributes.get("aria-hidden") == "true"
    assert page.all("html")[0]["lang"] == "en"
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")


def test_finished_seeds_are_a_band_others_a_thin_line_and_every_mean_is_bold(written, runs_folder):
    text = written(runs_folder)
    error = re.search(r'<svg [^>]*id="c1-headline".*?</svg>', text, re.DOTALL)[0]
    assert error.count('class="band"') == 3
    assert error.count('class="seed"') == 1
    assert error.count('class="mean"') == 3
    assert error.count('class="stopped"') == 1
    strength = re.search(r'<svg [^>]*id="c1-curve2".*?</svg>', text, re.DOTALL)[0]
    assert strength.count('class="band"') == 2
    forest = re.search(r'<svg [^>]*id="c1-forest".*?</svg>', text, re.DOTALL)[0]
    assert forest.count('class="dot"') == 7


def test_data_sets_and_networks_have_sections_of_their_own(written, make_run, tmp_path):
    make_run(tmp_path / "runs" / "a", data="cifar10")
    make_run(tmp_path / "runs" / "b", data="svhn", network="resnet-32", scale="paper")
    page = Page(written(tmp_path / "runs"))
    assert [attributes["id"] for attributes in page.all("section")] == ["c1", "c2"]
    assert "isda on cifar10 and svhn" in page.text
    assert "paper: the paper's recipe in full" in page.text


def test_cross_entropy_has_the_same_look_in_every_section(written, make_run, tmp_path):
    make_run(tmp_path / "runs" / "a", "isda", data="cifar10")
    make_run(tmp_path / "runs" / "b", "cross-entropy", data="svhn")
    assert looks(written(tmp_path / "runs")) == {("0", "cross-entropy"), ("1", "isda")}


def test_baselines_of_different_tasks_have_the_same_look(written, make_run, tmp_path):
    for method in ("isda", "cross-entropy"):
        make_run(tmp_path / "runs" / method, method)
    for method in ("isda", "supervised", "vat"):
        make_run(tmp_path / "runs" / "semi" / method, method, unlabelled=100)
    assert looks(written(tmp_path / "runs")) == {
        ("0", "cross-entropy"),
        ("0", "supervised"),
        ("1", "isda"),
        ("2", "vat"),
    }


def test_a_baseline_that_meets_another_one_does_not_share_its_look(written, make_run, tmp_path):
    for data, methods in {"cifar10": ("cross-entropy", "supervised"), "svhn": ("supervised", "isda")}.items():
        for method in methods:
            make_run(tmp_path / "runs" / data / method, method, data=data)
    assert looks(written(tmp_path / "runs")) == {("0", "cross-entropy"), ("1", "supervised"), ("2", "isda")}


def test_run_folders_and_the_command_are_named_from_where_the_page_is(written, make_run, tmp_path):
    make_run(tmp_path / "runs" / "isda" / "seed-0")
    text = written(tmp_path / "runs")
    assert "<code>isda report ../runs/isda/seed-0 --out report.html</code>" in text
    assert "<code>../runs/isda/seed-0</code>" in text
    assert str(tmp_path) not in text


def test_runs_that_have_only_started_make_a_page(written, make_run, tmp_path):
    make_run(tmp_path / "runs" / "a", "isda", stop=0)
    make_run(tmp_path / "runs" / "b", "cross-entropy", stop=0)
    page = Page(written(tmp_path / "runs"))
    assert "No run has recorded an epoch yet." in page.text
    assert "2 runs, 0 of them finished" in page.text


def test_a_metric_that_is_not_finite_is_called_so(written, make_run, tmp_path):
    folder = make_run(tmp_path / "runs" / "a")
    result = json.loads((folder / "result.json").read_text()) | {"nll": float("inf"), "calibration": None}
    (folder / "result.json").write_text(json.dumps(result).replace("Infinity", "1e999"))
    page = Page(written(tmp_path / "runs"))
    assert "not finite" in page.text
    assert "Calibration" not in page.text


def test_a_page_is_replaced_as_a_whole_or_not_at_all(written, runs_folder, tmp_path, monkeypatch):
    before = written(runs_folder)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("isda.lab.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        written(runs_folder, title="new")
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8") == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_the_same_runs_make_the_same_page(written, runs_folder):
    assert written(runs_folder) == written(runs_folder)


def test_markup_escapes_plain_text_once():
    assert tag("p", "<&>", tag("b", "x"), title='"') == '<p title="&quot;">&lt;&amp;&gt;<b>x</b></p>'
    assert tag("input", type="checkbox", checked="", id=None) == '<input type="checkbox" checked="">'
    assert join([Markup("<b>"), "<b>"]) == "<b>&lt;b&gt;"
