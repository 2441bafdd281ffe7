"""`isda report`: the table in the terminal, the page, and the JSON."""

import json

import pytest
import tyro
from isda.report.command import report


def run(*arguments):
    tyro.cli(report, args=[str(argument) for argument in arguments])


def test_it_prints_the_table_and_writes_the_page(runs_folder, tmp_path, capsys):
    run(runs_folder, "--out", tmp_path / "new" / "page.html", "--title", "A <title>")
    printed = capsys.readouterr().out
    assert "−0.73 ± 0.25" in printed
    assert str(tmp_path / "new" / "page.html") in printed
    assert "<h1>A &lt;title&gt;</h1>" in (tmp_path / "new" / "page.html").read_text(encoding="utf-8")


def test_the_page_names_the_command_that_made_it(runs_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(runs_folder.parent)
    run("runs/isda", "runs/cross-entropy", "--out", tmp_path / "page.html", "--title", "two words")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<code>isda report runs/isda runs/cross-entropy --out " in text
    assert "page.html --title &#x27;two words&#x27;</code>" in text


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
