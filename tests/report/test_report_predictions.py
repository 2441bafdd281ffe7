"""What pages make of the predictions of runs: calibration, confusions and mistakes; and the numbers as CSV."""

import base64
import csv
import io
import json
import re

import numpy as np
import pytest
from isda.lab.engine.digests import file_digest
from PIL import Image

from isda.lab.engine import find_runs
from isda.lab.report.downloads import MOST_BYTES, epochs_csv, runs_csv
from isda.lab.report.page import render_report
from isda.lab.report.predictions import comparison_predictions, most_confused
from isda.lab.report.summary import summarise
from isda.lab.tasks.common.predictions import PREDICTIONS_FILE
from run_folders import drawn_predictions as drawn
from run_folders import leave_predictions, write_run


@pytest.fixture
def top(tmp_path):
    """Two methods on three seeds; the error of isda is the smaller one."""
    for number, method in enumerate(("cross-entropy", "isda")):
        for seed in range(3):
            folder = write_run(tmp_path / "runs" / f"{method}-{seed}", method, seed)
            leave_predictions(folder, 10 * number + seed, wrong=0.35 - 0.1 * number)
    return tmp_path / "runs"


def compared(top):
    (comparison,) = summarise(find_runs([top]))
    return comparison


def page(top, **changes):
    return render_report(find_runs([top]), top, None, "isda report", **changes)


# -- the figures -----------------------------------------------------------------------------------------------------


def test_bins_are_those_of_the_definition(top):
    method = comparison_predictions(compared(top))[1]
    pooled = [drawn(10 + seed, wrong=0.25) for seed in range(3)]
    rows = [
        (float(confidence), int(label) == int(guess))
        for run in pooled
        for confidence, label, guess in zip(run.confidence, run.labels, run.predicted, strict=True)
    ]
    expected = []
    for index in range(15):
        inside = [(c, hit) for c, hit in rows if index / 15 <= c < (index + 1) / 15 or (index == 14 and c >= 1)]
        if inside:
            confidences, hits = zip(*inside, strict=True)
            expected.append((np.mean(confidences), np.mean(hits), len(inside) / len(rows)))
    assert np.array(method.bins()) == pytest.approx(np.array(expected))
    assert method.accuracy == pytest.approx(np.mean([hit for _, hit in rows]))
    assert sum(one.share for one in method.bins()) == pytest.approx(1)


def test_confusions_are_shares_of_the_images_of_a_class(top):
    method = comparison_predictions(compared(top))[0]
    counts = np.zeros((10, 10))
    for seed in range(3):
        run = drawn(seed, wrong=0.35)
        np.add.at(counts, (run.labels.numpy(), run.predicted.numpy()), 1)
    shares = counts / counts.sum(1, keepdims=True)
    assert method.confusion().numpy() == pytest.approx(shares)
    (most, *_) = most_confused([method], 5)
    np.fill_diagonal(shares, 0)
    assert shares[most] == pytest.approx(shares.max())


def test_mistakes_are_each_shown_once_with_the_runs_that_share_them(top):
    method = comparison_predictions(compared(top))[0]
    runs = [drawn(seed, wrong=0.35) for seed in range(3)]
    wrong = {}
    for run in runs:
        for index in (run.predicted != run.labels).nonzero().flatten().tolist():
            wrong.setdefault(index, []).append((float(run.confidence[index]), int(run.predicted[index])))
    expected = sorted(((*max(found), index) for index, found in wrong.items()), reverse=True)[:8]
    mistakes = method.mistakes(8)
    assert [(mistake.confidence, mistake.predicted) for mistake in mistakes] == [
        (confidence, predicted) for confidence, predicted, _ in expected
    ]
    assert [(mistake.wrong, mistake.runs) for mistake in mistakes] == [(len(wrong[index]), 3) for *_, index in expected]


def test_the_page_has_a_diagram_a_matrix_and_pictures_for_each_method(top):
    text = page(top)
    for heading in ("Calibration", "Confusions", "Most confident mistakes"):
        assert f"<h3>{heading}</h3>" in text
    for kind in ("reliability", "confusion"):
        assert re.findall(rf'id="(c1-{kind}\d)"', text) == [f"c1-{kind}1", f"c1-{kind}2"]
    method = comparison_predictions(compared(top))[1]
    assert f"isda: mean confidence {100 * method.confidence:.1f}%, accuracy {100 * method.accuracy:.1f}%" in text
    (first, *_) = method.mistakes(8)
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(pictures) == 16
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[8]))))
    assert (shown == first.picture.permute(1, 2, 0).numpy()).all()
    assert f'{100 * first.confidence:.1f}% · <span class="word">{first.wrong} of 3</span>' in text
    cell = re.search(r"cat as dog: ([\d.]+)%", text)[1]
    confusion = comparison_predictions(compared(top))[0].confusion()
    assert cell == f"{100 * float(confusion[3, 5]):.1f}"


def test_runs_without_predictions_have_no_such_sections(tmp_path):
    write_run(tmp_path / "runs" / "a")
    text = page(tmp_path / "runs")
    assert "Calibration</h3>" not in text
    assert "Confusions" not in text


def test_one_run_that_has_left_predictions_is_enough(top):
    for folder in list(top.iterdir()):
        if folder.name != "isda-1":
            (folder / PREDICTIONS_FILE).unlink()
    text = page(top)
    assert 'id="c1-reliability1"' in text
    assert "c1-reliability2" not in text
    assert "after the last epoch, of one run." in text


def test_many_classes_have_a_table_of_pairs(tmp_path):
    names = [f"class {index}" for index in range(30)]
    folder = write_run(tmp_path / "runs" / "a", classes=names)
    leave_predictions(folder, 0, classes=30, count=3000)
    text = page(tmp_path / "runs")
    assert "c1-confusion1" not in text
    assert "The 15 most confused pairs of 30 classes" in text
    (method,) = comparison_predictions(compared(tmp_path / "runs"))
    pair = most_confused([method], 1)[0]
    share = 100 * float(method.confusion()[pair])
    expected = f'<th scope="row">class {pair.label}</th><td>class {pair.predicted}</td><td class="n">{share:.1f}</td>'
    assert expected in text


def test_a_changed_or_damaged_file_is_refused(top):
    path = top / "isda-0" / PREDICTIONS_FILE
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ValueError, match=r"predictions.safetensors was changed after result.json was written"):
        page(top)
    path.write_bytes(b"no tensors")
    result = json.loads((top / "isda-0" / "result.json").read_text())
    result["files"] = {PREDICTIONS_FILE: file_digest(path)["sha256"]}
    (top / "isda-0" / "result.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="does not hold the predictions of a run"):
        page(top)


def test_names_of_classes_are_text(tmp_path):
    evil = '</title><script>alert("x")</script>'
    folder = write_run(tmp_path / "runs" / "a", classes=[evil, *"bcdefghij"])
    leave_predictions(folder, 0)
    assert "<script>alert" not in page(tmp_path / "runs")


# -- errors per class ------------------------------------------------------------------------------------------------


def test_a_chart_of_many_classes_shows_those_of_the_highest_errors(tmp_path):
    folder = write_run(tmp_path / "runs" / "a")
    result = json.loads((folder / "result.json").read_text())
    result["per_class"] = {"error": {f"class {index}": float(index % 50) for index in range(100)}}
    (folder / "result.json").write_text(json.dumps(result))
    text = page(tmp_path / "runs")
    assert "The 24 classes with the highest means; the table below has all 100." in text
    drawn_bars = re.findall(r"<title>isda, (class \d+): ([\d.]+)</title>", text)
    assert len(drawn_bars) == 2 * 24
    assert min(float(value) for _, value in drawn_bars) == 38.0
    assert "Error per class as a table" in text


# -- numbers as CSV --------------------------------------------------------------------------------------------------


def links(text):
    """The files that the page offers, by name."""
    found = re.findall(r'<a href="data:text/csv;charset=utf-8;base64,([^"]+)" download="([^"]+)">', text)
    return {name: list(csv.DictReader(io.StringIO(base64.b64decode(data).decode()))) for data, name in found}


def test_the_page_offers_its_numbers_as_csv(top):
    files = links(page(top))
    assert list(files) == ["c1-runs.csv", "c1-epochs.csv"]
    runs = {(line["method"], line["seed"]): line for line in files["c1-runs.csv"]}
    records = find_runs([top])
    assert len(runs) == len(records) == 6
    for run in records:
        line = runs[run.method, str(run.seed)]
        assert float(line["error"]) == run.result["error"]
        assert float(line["nll"]) == run.result["nll"]
        assert line["finished"] == "True"
    epochs = files["c1-epochs.csv"]
    assert len(epochs) == 6 * 20
    assert float(epochs[19]["test/error"]) == records[0].metrics[19]["test/error"]
    assert epochs[0]["strength"] == ""
    assert epochs[-1]["strength"] == "0.5"


def test_a_long_list_of_epochs_is_left_out(top, monkeypatch):
    monkeypatch.setattr("isda.lab.report.downloads.MOST_BYTES", len(epochs_csv(compared(top))) - 1)
    assert list(links(page(top))) == ["c1-runs.csv"]
    assert MOST_BYTES == 2**20


def test_unfinished_runs_have_empty_cells_and_formulas_are_text(tmp_path):
    write_run(tmp_path / "a", "=HYPERLINK(1)", stop=3)
    (line,) = csv.DictReader(io.StringIO(runs_csv(compared(tmp_path))))
    assert (line["method"], line["finished"], line["epoch"]) == ("'=HYPERLINK(1)", "False", "3")
    write_run(tmp_path / "b", "other", stop=0)
    write_run(tmp_path / "c", "third")
    lines = list(csv.DictReader(io.StringIO(runs_csv(compared(tmp_path)))))
    assert [line["error"] != "" for line in lines] == [False, False, True]
