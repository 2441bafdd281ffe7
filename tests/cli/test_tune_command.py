"""The command tune as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isda.lab.engine import task as registry
from isda.lab.engine.run_folder import folder_lock
from small_runs import SMALL_WORDS, isda

TESTS = Path(__file__).parents[1]
PARABOLA = ["--task", "parabola:Parabola"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder of its own, with the task of tests/parabola.py in reach."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TESTS))
    monkeypatch.setenv("PARABOLA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    yield
    registry._registered.pop("parabola", None)


def begun(folder):
    return (folder / "begun.txt").read_text().splitlines()


def test_two_methods_are_tuned_alike_trained_on_all_data_and_compared(tmp_path):
    words = [
        *PARABOLA,
        "--methods",
        "plain",
        "parabola",
        "worse",
        "--search",
        "x=1,3,5",
        "--seeds",
        2,
        "--out",
        "tuned",
    ]
    out, err, code = isda("tune", *words, "--json", "tuned.json")
    assert code is None, code
    assert out.index("Search on points with none") < out.index("difference")
    assert "plain: nothing to choose. parabola: x=3 chosen after 3 trials." in " ".join(out.split())
    assert "Held out: a tenth" in " ".join(out.split())
    assert "The page is tuned/report.html" in out
    assert "run 1/6: " in err
    written = json.loads(Path("tuned.json").read_text())
    assert written["search"]["methods"][1]["chosen"] == {"x": 3.0}
    assert [len(one["trials"]) for one in written["search"]["methods"]] == [0, 3, 3]
    assert written["search"]["methods"][1]["inside"]
    (comparison,) = written["comparisons"]
    assert [method["label"] for method in comparison["methods"]] == ["plain", "parabola", "worse"]
    assert comparison["evaluated_on"] == "test"
    assert all(method["seeds"] == 2 for method in comparison["methods"])
    assert {folder.name for folder in Path("tuned").iterdir()} >= {"search", "final", "tune.json"}
    # Once more: nothing is repeated, and all is said again.
    before = begun(tmp_path)
    again, _, code = isda("tune", *words)
    assert (again, code) == (out, None)
    assert begun(tmp_path) == before


def test_the_same_names_as_in_train_and_one_method(tmp_path):
    words = ["tune", *SMALL_WORDS, "--method", "isda", "--search", "lambda_0=0.5,2", "--search", "lr=0.05,0.1"]
    out, _, code = isda(*words, "--trials", 2, "--seeds", 1, "--json", "-")
    assert code is None, code
    written = json.loads(out)
    (method,) = written["search"]["methods"]
    assert [one["name"] for one in method["searched"]] == ["lambda_0", "lr"]
    assert [one["of_method"] for one in method["searched"]] == [True, False]
    assert len(method["trials"]) == 2
    assert method["held_out"] == "259 of 1,297 training images"
    best = min(method["trials"], key=lambda trial: trial["value"])
    assert method["chosen"] == best["point"]
    final = written["comparisons"][0]
    assert (final["evaluated_on"], final["train_images"], final["test_images"]) == ("test", 100, 500)
    assert final["methods"][0]["method_options"]["lambda_0"] == method["chosen"]["lambda_0"]
    config = json.loads(Path(final["methods"][0]["folders"][0], "config.json").read_text())
    assert config["lr"] == method["chosen"]["lr"]
    assert Path("runs/tune-digits/tune.json").is_file()


def test_a_method_that_only_diverges_is_named_and_a_search_without_final_runs_has_its_page():
    words = [*PARABOLA, "--methods", "parabola", "worse", "--search", "parabola:x=1,2", "--search", "worse:z=50,60"]
    out, _, code = isda("tune", *words, "--no-retrain", "--out", "tuned")
    assert code == "isda: all trials of worse diverged; try smaller values"
    assert "the loss became infinite or not a number in step 0" in " ".join(out.split())
    assert "difference" not in out
    assert not Path("tuned/final").exists()
    assert "Held-out figure of parabola against x" in Path("tuned/report.html").read_text()
    told, _, code = isda("report", "tuned", "--out", "page.html")
    assert code is None, code
    assert "Search on points with none" in told


def test_a_second_writer_is_told_who_has_the_folder(tmp_path):
    with folder_lock(tmp_path / "tuned"):
        _, _, code = isda("tune", *PARABOLA, "--method", "parabola", "--out", "tuned")
    assert code.startswith("isda: tuned is being written by another process")
    assert [path.name for path in Path("tuned").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "parabola", "--methods", "parabola"], "isda: tune takes --method or --methods, not both"),
        (["--method", "parabola", "--seeds", "0"], "isda: seeds must be from 1 to 1000, got 0"),
        (["--method", "parabola", "--choose-seeds", "0"], "isda: choose_seeds must be from 1 to 1000, got 0"),
        (["--method", "plain"], "isda: nothing to choose by default for plain; add --search NAME=VALUE,VALUE"),
        (["--method", "parabola", "--jobs", "0"], "isda: jobs must be from 1 to 10000, got 0"),
    ],
)
def test_mistakes_end_in_a_sentence(words, sentence):
    assert isda("tune", *PARABOLA, *words, "--out", "tuned")[2] == sentence
    assert not Path("tuned/tune.json").exists()


def test_a_task_without_held_out_data_says_so():
    code = isda("tune", "--task", "detection", "--data", "nowhere")[2]
    assert code.startswith("isda: ")


@pytest.mark.slow
def test_a_killed_command_goes_on_and_says_the_same(tmp_path):
    words = ["tune", *PARABOLA, "--methods", "parabola", "worse", "--steps", 60, "--trials", 4, "--jobs", 2]
    out, _, code = isda(*words, "--out", "whole", "--no-retrain")
    assert code is None, code
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "isda", *map(str, words), "--out", "killed", "--no-retrain"]
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    while not list(Path("killed/search").glob("*/*/result.json")):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 600
    while any_left(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    finished = {path: path.stat().st_mtime_ns for path in Path("killed/search").glob("*/*/result.json")}
    again, _, code = isda(*words, "--out", "killed", "--no-retrain")
    assert code is None, code
    assert again.replace("killed/report.html", "whole/report.html") == out
    assert json.loads(Path("killed/tune.json").read_text()) == json.loads(Path("whole/tune.json").read_text())
    assert all(path.stat().st_mtime_ns == written for path, written in finished.items())


def any_left(group):
    """Whether a process of the group still runs: workers save and end by themselves."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_on_digits_the_choice_is_within_noise_of_the_best_of_the_grid():
    """Chosen by 3 held-out runs each; the test error of the choice is compared with that of every value of the grid."""
    common = ["--labels", "200", "--batch-size", "32", "--epochs", "30", "--width", "0.5", "--evaluate-every", "10"]
    grid = ["0.1", "0.5", "1", "2", "5"]
    words = [*common, "--search", f"lambda_0={','.join(grid)}", "--choose-seeds", 3]
    out, _, code = isda("tune", *words, "--no-retrain", "--jobs", "2", "--json", "-", "--out", "tuned")
    assert code is None, code
    chosen = json.loads(out)["search"]["methods"][0]["chosen"]["lambda_0"]
    methods = [f"isda:lambda_0={value}" for value in grid]
    out, _, code = isda("compare", *common, "--methods", *methods, "--seeds", "6", "--jobs", "2", "--json", "-")
    assert code is None, code
    errors = {m["method_options"]["lambda_0"]: list(m["errors"].values()) for m in json.loads(out)[0]["methods"]}
    best = min(errors, key=lambda value: sum(errors[value]))
    differences = [one - other for one, other in zip(errors[chosen], errors[best], strict=True)]
    mean = sum(differences) / 6
    spread = (sum((one - mean) ** 2 for one in differences) / 5) ** 0.5
    # Student's two-sided 95% with 5 degrees of freedom.
    assert mean <= max(0.5, 2.571 * spread / 6**0.5), (chosen, best, errors)
