"""`isda report`: the table in the terminal, the page, and the JSON."""

import json
import re
import subprocess
import sys

import pytest
import tyro

from isda.lab.cli.analysis import directions, map_features, tightness
from isda.lab.cli.compare import command_for as compare_command
from isda.lab.cli.report import report
from run_folders import write_comparison, write_run, write_strangers_run


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory):
    """Three methods on four seeds, one run unfinished."""
    return write_comparison(tmp_path_factory.mktemp("report") / "runs")


def run(*arguments):
    tyro.cli(report, args=[str(argument) for argument in arguments])


def test_it_prints_the_table_and_writes_the_page(runs_folder, tmp_path, capsys):
    run(runs_folder, "--out", tmp_path / "new" / "page.html", "--title", "A <title>")
    printed = capsys.readouterr().out
    assert re.search(r"−0\.73 ± \d\.\d\d", printed)
    assert str(tmp_path / "new" / "page.html") in printed
    text = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert "<title>A &lt;title&gt;</title>" in text
    assert "<h1>ISDA has a lower test error: " in text
    assert "ISDA has a lower test error: " in printed


def test_the_page_names_the_command_that_made_it(runs_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(runs_folder.parent)
    run("runs/isda", "runs/cross-entropy", "--out", tmp_path / "page.html", "--title", "two words")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<code>isda report runs/isda runs/cross-entropy --out " in text
    assert "page.html --title &#39;two words&#39;</code>" in text


def test_the_page_is_report_html_by_default(runs_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(runs_folder)
    assert (tmp_path / "report.html").is_file()


def test_json_goes_to_a_file_beside_the_table(runs_folder, tmp_path, capsys):
    run(runs_folder, "--out", tmp_path / "page.html", "--json", tmp_path / "table.json")
    (record,) = json.loads((tmp_path / "table.json").read_text())
    assert [method["label"] for method in record["methods"]] == ["cross-entropy", "isda", "isda-tilted"]
    assert "isda-tilted" in capsys.readouterr().out


def test_a_dash_prints_nothing_but_json(runs_folder, tmp_path, capsys):
    run(runs_folder, "--out", tmp_path / "page.html", "--json", "-")
    (record,) = json.loads(capsys.readouterr().out)
    assert record["baseline"] == "cross-entropy"
    assert (tmp_path / "page.html").is_file()


def test_a_folder_without_runs_is_one_clear_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"no run in .*: a run folder holds config"):
        run(tmp_path, "--out", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_runs_of_a_task_that_is_nowhere_installed_are_reported_and_no_task_is_imported(tmp_path):
    # The name could be imported, and would end the process.
    (tmp_path / "strangers_task.py").write_text("raise SystemExit('imported')")
    for method, miou in {"pixel-cross-entropy": 0.71, "soft": 0.73}.items():
        write_strangers_run(tmp_path / "runs" / method, method, 0, miou, task="strangers_task:Segmentation")
    write_run(tmp_path / "runs" / "known")
    told = (
        "import sys; from isda.lab.cli import main; main(sys.argv[1:]); print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    words = ["report", "runs", "--json", "-"]
    ended = subprocess.run(
        [sys.executable, "-c", told, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    known, strangers = json.loads(ended.stdout)
    assert (known["task"], strangers["task"]) == ("classification", "strangers_task:Segmentation")
    assert strangers["methods"][1]["difference_mean"] == pytest.approx(0.02)
    assert "mean IoU" in (tmp_path / "report.html").read_text(encoding="utf-8")
    tasks = (
        "strangers_task",
        "isda.lab.tasks.classification",
        "isda.lab.tasks.semi_supervised",
        "isda.lab.networks",
        "isda.lab.data",
    )
    imported = ended.stderr.split()
    assert "isda.lab.report.page" in imported
    assert not [name for name in imported if name.startswith(tasks)]


def test_a_page_replaces_its_own_kind_and_no_other_file(runs_folder, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<html>my notes</html>")
    with pytest.raises(ValueError, match=r"page\.html exists and is not a page of `isda report`; .* add --overwrite"):
        run(runs_folder, "--out", page)
    assert page.read_text() == "<html>my notes</html>"
    run(runs_folder, "--out", page, "--overwrite")
    run(runs_folder, "--out", page, "--title", "again")
    assert "<title>again</title>" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("command", "words"), [(directions, ()), (map_features, ()), (tightness, ("--draws", "10"))])
def test_pages_of_analyses_replace_no_other_file(tmp_path, command, words):
    page = tmp_path / "page.html"
    page.write_text('<p class="kicker">isda report</p>')
    # Before the run is opened: a measurement may take minutes.
    with pytest.raises(ValueError, match=r"page\.html exists and is not a page of `isda \w+`; .* add --overwrite"):
        tyro.cli(command, args=[str(tmp_path / "no-run"), "--out", str(page), *words])
    with pytest.raises(ValueError, match="no-run"):
        tyro.cli(command, args=[str(tmp_path / "no-run"), "--out", str(page), "--overwrite", *words])


def test_a_comparison_refuses_a_page_before_it_trains(tmp_path):
    page = tmp_path / "notes.html"
    page.write_text("my notes")
    words = ["--data", "digits", "--methods", "isda", "--out", str(tmp_path / "runs"), "--report", str(page)]
    with pytest.raises(ValueError, match=r"notes\.html exists and is not a page of .*; choose another --report$"):
        tyro.cli(compare_command(["compare", *words]), args=words)
    assert not (tmp_path / "runs").exists()
