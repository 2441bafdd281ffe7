"""Reading run folders: finished, killed, broken."""

import json
import re
from pathlib import Path

import pytest

from isda.lab.engine import Figure, find_runs, read_run
from isda.lab.engine.config import result_figures
from run_folders import write_run, write_strangers_run


def test_a_finished_run_is_read_whole(tmp_path):
    run = read_run(write_run(tmp_path / "a", "isda", seed=3))
    assert (run.method, run.seed, run.config.epochs, run.epoch) == ("isda", 3, 20, 20)
    assert (run.headline.name, run.value) == ("error", run.result["error"])
    assert run.stored["network_options"] == {"width": 0.5}
    assert run.environment["torch"] == "2.15.0"
    assert run.result["seconds"] == 213.0
    assert [epoch for epoch, _ in run.curve("test/error")] == list(range(1, 21))
    assert run.curve("nobody/recorded/this") == []


def test_baselines_are_those_that_the_run_itself_names(tmp_path):
    named = {method: read_run(write_run(tmp_path / method, method)) for method in ("isda", "cross-entropy")}
    assert {method: run.is_baseline for method, run in named.items()} == {"isda": False, "cross-entropy": True}
    assert not read_run(write_run(tmp_path / "other", "cross-entropy", baselines=("isda",))).is_baseline


def test_options_that_are_not_set_are_not_the_method_s(tmp_path):
    run = read_run(write_run(tmp_path / "a", method_options={"lambda_0": 0.5, "decay": None}))
    assert run.method_options == {"lambda_0": 0.5}


def test_a_run_of_a_task_that_nobody_here_knows_is_read_like_any_other(tmp_path):
    run = read_run(write_strangers_run(tmp_path / "a", "soft", 2, 0.71))
    assert (run.config.task, run.stored["crop"]) == ("strangers-segmentation", 512)
    assert (run.headline.title, run.headline.lower_is_better, run.value) == ("mean IoU", False, 0.71)
    assert run.curve("validation/miou")[-1] == (20, pytest.approx(0.71))


def test_an_unfinished_run_has_no_result_and_says_how_far_it_came(tmp_path):
    run = read_run(write_run(tmp_path / "a", stop=7))
    assert run.result is None
    assert run.epoch == 7


def test_a_run_that_has_just_started_is_a_run(tmp_path):
    folder = write_run(tmp_path / "a", stop=0)
    (folder / "metrics.jsonl").unlink()
    (folder / "environment.json").unlink()
    run = read_run(folder)
    assert (run.epoch, run.metrics, run.environment) == (0, (), {})


def test_a_last_line_cut_by_a_kill_is_ignored(tmp_path):
    folder = write_run(tmp_path / "a", stop=5)
    whole = (folder / "metrics.jsonl").read_bytes()
    line = whole.splitlines()[-1]
    for length in range(1, len(line)):
        (folder / "metrics.jsonl").write_bytes(whole + line[:length])
        assert read_run(folder).epoch == 5
    # Also in the middle of a character.
    (folder / "metrics.jsonl").write_bytes(whole + '{"λ'.encode()[:-1])
    assert read_run(folder).epoch == 5


def test_a_broken_line_before_the_last_is_named(tmp_path):
    folder = write_run(tmp_path / "a", stop=3)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1] = lines[1][:20]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"a/metrics\.jsonl is damaged"):
        read_run(folder)


def test_an_epoch_repeated_after_a_resume_counts_once_and_as_the_later(tmp_path):
    folder = write_run(tmp_path / "a", stop=5)
    with (folder / "metrics.jsonl").open("a") as file:
        for epoch in (4, 5, 6):
            file.write(json.dumps({"epoch": epoch, "step": 39 * epoch, "test/error": 50.0 + epoch}) + "\n")
    run = read_run(folder)
    assert [epoch for epoch, _ in run.curve("test/error")] == [1, 2, 3, 4, 5, 6]
    assert dict(run.curve("test/error"))[4] == 54.0


def test_values_that_are_not_finite_leave_gaps_in_a_curve(tmp_path):
    folder = write_run(tmp_path / "a", stop=0)
    written = enumerate(("NaN", "1", '"high"', "true"), start=1)
    lines = (f'{{"epoch": {epoch}, "step": {epoch}, "x": {value}}}\n' for epoch, value in written)
    (folder / "metrics.jsonl").write_text("".join(lines))
    assert read_run(folder).curve("x") == [(2, 1.0)]


@pytest.mark.parametrize("name", ["config.json", "environment.json", "result.json"])
@pytest.mark.parametrize(("text", "message"), [('{"a": ', "is not JSON"), ("[]", "must hold a JSON object, got list")])
def test_a_broken_file_is_named(tmp_path, name, text, message):
    folder = write_run(tmp_path / "a")
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=f"a/{re.escape(name)} {message}"):
        read_run(folder)


def test_a_config_without_what_every_run_has_is_refused(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "config.json").write_text(json.dumps({"format": 3, "data": "x", "network": "y", "scale": "small"}))
    with pytest.raises(
        ValueError, match=r"config\.json lacks method, seed, epochs, evaluate_every, task, steps_per_epoch, figures"
    ):
        read_run(folder)


def test_a_run_without_a_figure_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json must name at least one figure, got none"):
        read_run(write_run(tmp_path / "a", figures=(), stop=0))


@pytest.mark.parametrize("figures", [["error"], [{"name": "error"}], [{"name": "error", "colour": "red"}], 3])
def test_figures_that_are_not_described_are_refused(tmp_path, figures):
    folder = write_run(tmp_path / "a")
    stored = json.loads((folder / "config.json").read_text()) | {"figures": figures}
    (folder / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"config\.json describes its figures in a way that is not known here"):
        read_run(folder)


def test_a_format_of_another_time_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json must be a run's configuration of format 3, got 0"):
        read_run(write_run(tmp_path / "a", format=0))


@pytest.mark.parametrize("error", ["high", None, True])
def test_a_result_without_a_number_as_error_is_refused(tmp_path, error):
    folder = write_run(tmp_path / "a")
    (folder / "result.json").write_text(json.dumps({"error": error}))
    with pytest.raises(ValueError, match=r"result\.json must have a number as error, got"):
        read_run(folder)


def test_runs_are_found_at_any_depth_once_and_in_the_order_of_numbers(tmp_path):
    for seed in (10, 2, 1):
        write_run(tmp_path / "deep" / "er" / f"seed-{seed}", seed=seed % 9)
    write_run(tmp_path / "other")
    found = find_runs([tmp_path / "other", tmp_path])
    names = [run.folder.relative_to(tmp_path).as_posix() for run in found]
    assert names == ["other", "deep/er/seed-1", "deep/er/seed-2", "deep/er/seed-10"]


def test_what_a_run_keeps_below_itself_is_not_a_run(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "config.json").write_text("{}")
    assert [run.folder for run in find_runs([tmp_path])] == [folder]


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=rf"no run in {re.escape(str(tmp_path))}: a run folder holds config\.json"):
        find_runs([tmp_path])
    with pytest.raises(ValueError, match=r"a run folder holds config\.json"):
        read_run(tmp_path)


def test_a_path_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"runs must be folders, got .*file, which is a file"):
        find_runs([tmp_path / "file"])
    with pytest.raises(ValueError, match="runs must be folders, got nowhere, which does not exist"):
        find_runs([Path("nowhere")])


def test_no_paths_are_refused():
    with pytest.raises(ValueError, match="runs must name at least one folder, got none"):
        find_runs([])


def test_a_figure_without_a_number_is_left_out_of_the_mean():
    figure = Figure(name="error", metric="test/error", title="test error")
    lines = [{"test/error": 4.0}, {"test/error": None}, {"test/error": 2.0}]
    assert result_figures([figure], lines, average_last=3) == pytest.approx({"error": 3.0, "error_last": 2.0})
