"""`isda reproduce` as a user runs it: tables beside the paper's, repeated, interrupted, and with parts that fail."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from enlarged_digits import enlarged
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import run_folders
from isda.lab.reproduce.figures import run_apart
from isda.lab.reproduce.training import SCALES
from reproduce.drawn_root import draw_root
from small_runs import isda

ONE_ROW = ("table-2", "--only", "ResNet-32", "CIFAR-10", "--seeds", "2")


@pytest.fixture(autouse=True)
def _nothing_but_what_ships(tmp_path, monkeypatch):
    monkeypatch.setenv("ISDA_DATA", str(tmp_path / "nothing"))


def results(folder: Path) -> dict[str, dict[str, object]]:
    """The results of all runs by folder, with the digests of their weights, without their times."""
    found = {str(run.relative_to(folder)): RunFolder(run).read_result() for run in run_folders(folder)}
    return {run: {key: value for key, value in one.items() if "seconds" not in key} for run, one in found.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A row of Table 2, made once."""
    folder = tmp_path_factory.mktemp("reproduced")
    os.environ["ISDA_DATA"] = str(folder / "nothing")
    out, err, code = isda("reproduce", *ONE_ROW, "--out", folder / "all", "--json", folder / "table.json")
    assert code is None, err
    return folder, out, json.loads((folder / "table.json").read_text())


def test_ours_stand_beside_the_papers(made):
    folder, out, (table,) = made
    assert [(cell["row"], cell["column"], cell["paper"]) for cell in table["cells"]] == [
        ("ResNet-32", "CIFAR-10 basic", "7.39 ± 0.10%"),
        ("ResNet-32", "CIFAR-10 ISDA", "7.09 ± 0.12%"),
    ]
    assert all(cell["seeds"] == 2 and 0 < cell["mean"] <= 100 and cell["std"] is not None for cell in table["cells"])
    runs = [run for run in run_folders(folder / "all") if "final" in run.parts and "cross-entropy" in str(run)]
    errors = [RunFolder(run).read_result()["error"] for run in runs]
    assert table["cells"][0]["mean"] == pytest.approx(sum(errors) / 2)
    (gain,) = table["differences"]
    assert gain["paper"] == pytest.approx(7.09 - 7.39)
    assert gain["mean"] == pytest.approx(table["cells"][1]["mean"] - table["cells"][0]["mean"])
    assert "7.09 ± 0.12%" in out
    assert "scale smoke" in out.lower()
    page = (folder / "all" / "table-2.html").read_text()
    assert "digits replace cifar10" in page.lower()
    assert "7.39 ± 0.10%" in page
    # What the paper chooses on held-out data was.
    searched = [run for run in run_folders(folder / "all") if "search" in run.parts]
    assert len(searched) == 2


def test_the_same_command_makes_the_same_table_and_no_run_again(made):
    folder, _, before = made
    times = {run: RunFolder(run).result_file.stat().st_mtime_ns for run in run_folders(folder / "all")}
    again, err, code = isda("reproduce", *ONE_ROW, "--out", folder / "all", "--json", "-")
    assert code is None, err
    assert json.loads(again) == before
    assert times == {run: RunFolder(run).result_file.stat().st_mtime_ns for run in run_folders(folder / "all")}


def test_the_list_knows_what_is_there(made):
    folder, _, _ = made
    out, err, code = isda("reproduce", "list", "--out", folder / "all", "--json", "-")
    assert code is None, err
    known = {one["name"]: one for one in json.loads(out)}
    assert (known["table-2"]["cells_done"], known["table-2"]["cells"]) == (2, 36)
    assert known["table-2"]["runs_done"] == 6
    assert known["table-3"]["operations"] == 0
    assert known["table-4"]["seconds_here"] > known["table-4"]["seconds_gpu"] > 0
    out, _, _ = isda("reproduce", "list", "--out", folder / "all", "--gpu-tflops", "100")
    assert "100 TFLOP/s" in out


@pytest.mark.parametrize(
    ("words", "rows", "column"),
    [
        (("table-3", "--only", "ResNet-32"), 1, "standard FLOPs"),
        (("table-2", "--only", "parameters"), 9, "parameters"),
        (("table-1", "--only", "theoretical", "ResNet-50"), 1, "additional cost (theoretical)"),
    ],
)
def test_words_select_counted_cells_which_have_no_seeds_and_no_scale(words, rows, column, tmp_path):
    out, err, code = isda("reproduce", *words, "--out", tmp_path, "--json", tmp_path / "table.json")
    assert code is None, err
    (table,) = json.loads((tmp_path / "table.json").read_text())
    assert all(cell["mean"] is not None and cell["seeds"] == 0 for cell in table["cells"])
    assert table["seeds"] == 0
    assert len([cell for cell in table["cells"] if cell["column"] == column]) == rows
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    for text in (out, (tmp_path / f"{words[0]}.html").read_text()):
        assert "counted or measured without training" in " ".join(text.split())
        for word in ("seeds", "Scale smoke", "scale smoke", "100 images"):
            assert word not in text


def test_the_papers_difference_is_to_its_own_base_which_need_not_be_selected(tmp_path):
    words = ("table-5", "--only", "Center Loss", "ResNet-110 CIFAR-10", "--seeds", "1")
    _, err, code = isda("reproduce", *words, "--out", tmp_path, "--json", tmp_path / "table.json")
    assert code is None, err
    (table,) = json.loads((tmp_path / "table.json").read_text())
    assert [cell["row"] for cell in table["cells"]] == ["Center Loss"]
    (difference,) = table["differences"]
    assert difference["paper"] == pytest.approx(6.38 - 6.76)
    # One seed: no interval, and no sentence about one.
    assert difference["half_width"] is None
    assert "without confidence intervals" in (tmp_path / "table-5.html").read_text()


def test_precision_and_composition_reach_the_runs_and_their_folders(tmp_path):
    words = ("table-6", "--only", "SVHN", "VAT", "--seeds", "1", "--precision", "float64", "--out", tmp_path)
    _, err, code = isda("reproduce", *words, "--labelled-per-batch", "published", "--json", tmp_path / "table.json")
    assert code is None, err
    configs = [json.loads((run / "config.json").read_text()) for run in run_folders(tmp_path)]
    assert {(config["precision"], config["labelled_per_batch"]) for config in configs} == {("float64", 5)}
    # Two trials and one final run each, with ISDA and without: eta_2 is chosen for both.
    assert sorted(config["evaluated_on"] for config in configs) == ["held-out"] * 4 + ["test"] * 2
    chosen = {config["method"]: set(config["settings"]["method"].partition(":")[2].split(",")) for config in configs}
    assert [len(chosen[name]) for name in ("vat", "vat+isda")] == [1, 3]
    assert all("precision=float64-labelled_per_batch=published" in str(run) for run in run_folders(tmp_path))
    out, _, _ = isda("reproduce", "list", "--out", tmp_path, "--json", "-")
    assert {row["runs_done"] for row in json.loads(out)} == {0}
    words = ("--precision", "float64", "--labelled-per-batch", "published", "--seeds", "1")
    out, _, _ = isda("reproduce", "list", "--out", tmp_path, "--json", "-", *words)
    (row,) = (row for row in json.loads(out) if row["name"] == "table-6")
    assert (row["runs_done"], row["cells_done"]) == (6, 2)


def test_the_times_of_the_list_say_what_they_are_for(tmp_path):
    words = ("reproduce", "list", "--scale", "paper", "--out", tmp_path)
    plain = " ".join(isda(*words)[0].split())
    assert "in float32, with one process per run" in plain
    assert "labelled images: as many as unlabelled ones" in plain
    assert "75 TFLOP/s" in plain
    changed = ("--precision", "bfloat16", "--labelled-per-batch", "published", "--processes-per-run", "4")
    told = " ".join(isda(*words, *changed)[0].split())
    assert "in bfloat16, with 4 processes" in told
    assert "labelled images: published" in told
    times = [json.loads(isda(*words, *some, "--json", "-")[0]) for some in ((), changed[:2], changed[4:])]
    first, mixed, together = ({row["name"]: row["seconds_gpu"] for row in rows}["table-2"] for rows in times)
    assert mixed == pytest.approx(first / 2)
    assert together == pytest.approx(first / 4)


@pytest.mark.slow
def test_figure_9_draws_the_runs_of_table_2(tmp_path):
    words = ("--seeds", "2", "--out", tmp_path)
    _, err, code = isda("reproduce", "table-2", "--only", "ResNet-110", "CIFAR-10", *words)
    assert code is None, err
    before = results(tmp_path)
    kept = [len(list((run / "checkpoints").glob("step-*"))) for run in run_folders(tmp_path) if "isda" in str(run)]
    assert max(kept) == 10  # every step of the first seed's final run; the others keep the last ones
    assert sum(count > 2 for count in kept) == 1
    _, err, code = isda("reproduce", "figure-9", "--only", "cifar10", *words)
    assert code is None, err
    assert results(tmp_path) == before


@pytest.mark.slow
def test_a_run_of_a_reproduction_may_have_two_processes(tmp_path):
    words = ("table-6", "--only", "SVHN", "VAT", "--seeds", "1", "--processes-per-run", "2", "--out", tmp_path)
    _, err, code = isda("reproduce", *words, "--json", tmp_path / "table.json")
    assert code is None, err
    (table,) = json.loads((tmp_path / "table.json").read_text())
    assert all(cell["mean"] is not None for cell in table["cells"])
    environments = [json.loads((run / "environment.json").read_text()) for run in run_folders(tmp_path)]
    assert {environment["processes"] for environment in environments} == {2}


def killed_again_and_again(folder: Path, kills: int, seed: int) -> int:
    """Kill the command and all its workers at random moments, then let it come to its end; how often it was killed."""
    draw = random.Random(seed)
    words = [sys.executable, "-m", "isda", "reproduce", *ONE_ROW, "--out", str(folder), "--checkpoint-steps", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for number in range(kills + 1):
        child = subprocess.Popen(
            words, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        runs = len(list(run_folders(folder)))
        while number < kills and len(list(run_folders(folder))) == runs and child.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.5))
        if number == kills or child.poll() is not None:  # on a fast machine before the last of the kills
            _, err = child.communicate()
            assert child.returncode == 0, err.decode()
            break
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    return number


@pytest.mark.slow
def test_a_reproduction_that_was_killed_goes_on_to_the_same_results(made, tmp_path):
    folder, _, before = made
    assert killed_again_and_again(tmp_path / "killed", 3, seed=3) > 0
    assert results(tmp_path / "killed") == results(folder / "all")
    out, _, _ = isda("reproduce", *ONE_ROW, "--out", tmp_path / "killed", "--json", "-")
    assert json.loads(out)[0]["cells"] == before[0]["cells"]


def process_with(file: Path) -> int:
    """The process that has a file open."""
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if opened.readlink() == file.resolve():
                return int(opened.parts[2])
    raise AssertionError(f"no process has {file} open")


@pytest.mark.slow
def test_a_worker_of_ray_dies_in_the_middle_of_a_run_and_nothing_is_lost_or_made_twice(made, tmp_path):
    pytest.importorskip("ray")
    folder, _, before = made
    words = [sys.executable, "-m", "isda", "reproduce", *ONE_ROW, "--out", "all", "--on", "ray", "--jobs", "2"]
    words += ["--checkpoint-steps", "1", "--threads", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    victim = None
    while victim is None:
        assert child.poll() is None, child.communicate()[1].decode()
        time.sleep(0.01)
        started = [run for run in run_folders(tmp_path / "all") if any(run.glob("checkpoints/step-*"))]
        victim = next((run for run in started if not RunFolder(run).finished), None)
    os.kill(process_with(victim / ".lock"), signal.SIGKILL)
    _, err = child.communicate()
    assert child.returncode == 0, err.decode()
    assert "resumed" in json.loads((victim / "environment.json").read_text())
    assert results(tmp_path / "all") == results(folder / "all")
    out, _, _ = isda("reproduce", *ONE_ROW, "--out", tmp_path / "all", "--json", "-")
    assert json.loads(out)[0]["cells"] == before[0]["cells"]


def test_what_fails_is_marked_and_the_rest_is_made(tmp_path):
    broken = tmp_path / "all" / "cifar10-resnet-32-cross-entropy" / "final" / "cross-entropy" / "seed-0"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("not a configuration")
    words = ("reproduce", "table-2", "--only", "ResNet-32", "CIFAR-10", "--seeds", "1", "--out", tmp_path / "all")
    out, _, code = isda(*words, "--json", tmp_path / "table.json")
    assert "config.json" in str(code)
    assert "failed" in out
    ((basic, ours),) = [table["cells"] for table in json.loads((tmp_path / "table.json").read_text())]
    assert "config.json" in basic["problem"]
    assert basic["mean"] is None
    assert ours["mean"] is not None
    assert "What failed" in (tmp_path / "all" / "table-2.html").read_text()


def test_data_that_is_not_there_is_named(tmp_path):
    words = ("reproduce", "table-1", "--only", "ResNet-50", "top-1", "--seeds", "1", "--out", tmp_path / "all")
    _, _, code = isda(*words)
    assert "imagenet is not under" in str(code)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tabel-2",), "did you mean 'table-2'"),
        ((), "name a table or figure"),
        (("table-2", "--seeds", "0"), "seeds must be from 1 to 1000"),
        (("table-2", "--only", "CIFAR-11"), "only must match a cell or a training"),
        (("table-2", "table-8", "--html", "a.html"), "html is the page of one"),
        (("list", "--gpu-tflops", "0"), "gpu_tflops must be a positive number"),
        (("list", "--processes-per-run", "0"), "processes_per_run must be"),
        (("table-3", "--only", "ResNet-33"), "only must match a cell or a training"),
        (("table-2", "--labelled-per-batch", "8"), "labelled_per_batch is for semi-supervised trainings, got 8"),
        (("table-5", "--precision", "float16"), "precision must be one of float32, float64, bfloat16 for cifar10-wgan"),
    ],
)
def test_bad_words_get_a_sentence_before_anything_is_made(words, sentence, tmp_path):
    _, _, code = isda("reproduce", *words, "--out", tmp_path / "all")
    assert sentence in str(code)
    assert not (tmp_path / "all").exists()


@pytest.mark.slow
def test_a_training_takes_what_was_chosen_for_another_and_chooses_the_rest(tmp_path):
    """Figure 10: the strength of ISDA, and an uncertainty weight of its own."""
    learned, isda_name = "isda-covariance=learned", "cifar100-wide-resnet-28-10-isda-augment=cutout"
    words = ("figure-10", "--only", f"{learned},cross-entropy", "augment=cutout", "--seeds", "1", "--out", tmp_path)
    _, err, code = isda("reproduce", *words, "--json", tmp_path / "made.json")
    assert code is None, err
    (made,) = json.loads((tmp_path / "made.json").read_text())
    assert not made["problems"]

    def options(training: str, part: str) -> list[dict[str, object]]:
        runs = run_folders(tmp_path / training / part)
        return [json.loads((run / "config.json").read_text())["method_options"] for run in runs]

    (strength,) = {one["lambda_0"] for one in options(isda_name, "final")}
    name = f"cifar100-wide-resnet-28-10-{learned}-augment=cutout-search=uncertainty_weight-chosen=isda"
    tried = options(name, "search")
    assert {one["lambda_0"] for one in tried} == {strength}
    assert len({one["uncertainty_weight"] for one in tried}) == 2
    (final,) = options(name, "final")
    assert final["lambda_0"] == strength
    assert final["uncertainty_weight"] in {one["uncertainty_weight"] for one in tried}
    assert f"lambda_0={strength:g}" in (tmp_path / "figure-10.html").read_text()


@pytest.mark.slow
def test_randaugment_is_chosen_without_isda_which_takes_it(tmp_path):
    """Table 4: N and M on held-out images, once; the number of runs is what the list announces."""
    data = enlarged("cifar10")
    images = {"x_train": data.x_train, "x_test": data.x_test}
    arrays = {name: part.permute(0, 2, 3, 1).numpy() for name, part in images.items()}
    arrays |= {"y_train": data.y_train.numpy(), "y_test": data.y_test.numpy(), "classes": np.array(data.classes)}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    out, words = tmp_path / "all", ("--seeds", "1", "--data-root", tmp_path)
    command = ("reproduce", "table-4", "--only", "RandAugment", "Wide-ResNet-28-10", "CIFAR-10")
    _, err, code = isda(*command, *words, "--out", out, "--json", tmp_path / "made.json")
    assert code is None, err
    configs = [json.loads((run / "config.json").read_text()) for run in run_folders(out)]
    assert len(configs) == 2 * (2 + 1)
    tried = {config["augment"] for config in configs if config["evaluated_on"] == "held-out"}
    assert tried == {"randaugment-1-5", "randaugment-3-14"}
    final = {config["method"]: config["augment"] for config in configs if config["evaluated_on"] == "test"}
    assert final["isda"] == final["cross-entropy"]
    assert f"augment={final['isda']} as chosen for cross-entropy" in (out / "table-4.html").read_text()
    listed, _, _ = isda("reproduce", "list", *words, "--out", out, "--json", "-")
    (row,) = (row for row in json.loads(listed) if row["name"] == "table-4")
    assert (row["runs_done"], row["cells_done"]) == (6, 2)


@pytest.mark.slow
def test_what_cannot_be_drawn_takes_no_other_result_with_it(tmp_path):
    """Figure 8 is drawn by a process of its own: whatever ends it, every page is there, and the error is told."""
    training = "cifar10-resnet-110-cross-entropy"
    words = ("reproduce", "figure-8", "--only", training, "--seeds", "1", "--out", tmp_path)
    _, err, code = isda(*words)
    assert code is None, err
    (tmp_path / "figure-8-supervised.html").unlink()
    (tmp_path / "figure-8.html").unlink()
    weights = tmp_path / training / "final" / "cross-entropy" / "seed-0" / "model.safetensors"
    weights.write_bytes(b"damaged")
    _, _, code = isda(*words, "--json", tmp_path / "made.json")
    assert "figure-8: " in str(code)
    assert "model.safetensors" in str(code)
    (made,) = json.loads((tmp_path / "made.json").read_text())
    assert made["pages"] == [str(tmp_path / "figure-8.html")]
    page = Path(made["pages"][0]).read_text()
    assert "What failed" in page
    assert "model.safetensors" in page


def test_a_process_that_dies_ends_no_other_process():
    with pytest.raises(ValueError, match="a process died \\(exit status -11\\)"):
        run_apart([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"])
    run_apart([sys.executable, "-c", "pass"])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_root(tmp_path_factory.mktemp("drawn"))


def test_a_part_of_a_table_runs_from_end_to_end(drawn, tmp_path):
    """All of everything is in `make test-slow`."""
    words = ("reproduce", "table-7", "--only", "PSPNet", "--seeds", "1", "--data-root", drawn, "--out", tmp_path)
    _, err, code = isda(*words, "--json", tmp_path / "made.json")
    assert code is None, err
    (made,) = json.loads((tmp_path / "made.json").read_text())
    assert not made["problems"]
    assert all(Path(page).is_file() for page in made["pages"])
    assert all(cell["mean"] is not None for cell in made["cells"])
    assert made["cells"] or len(made["pages"]) > 1


REAL_DATA = "ISDA_REAL_DATA"
"""The environment variable with a folder of cifar10.npz and cifar100.npz, and svhn.npz if it is there."""
REAL_FILES = ("cifar10.npz", "cifar100.npz", "svhn.npz")
REAL_IMAGES = {"x_train": 2000, "y_train": 2000, "x_test": 500, "y_test": 500}
"""The first so many images: trainings at scale smoke see 100, and evaluation would take most of the time."""


@pytest.fixture(params=["digits", "real"])
def everything_root(drawn, tmp_path, monkeypatch, request) -> Path:
    """Drawn data sets, with digits in place of small photographs, or with real photographs.

    Digits make trainings smaller than at the smallest scale that the command has.
    """
    if request.param == "digits":
        smaller = {"images": 40, "epochs": 1, "multiply_adds": 1e5, "trials": 1}
        monkeypatch.setitem(SCALES, "smoke", replace(SCALES["smoke"], **smaller))
        return drawn
    if not (folder := os.environ.get(REAL_DATA)):
        pytest.skip(f"{REAL_DATA} names no folder with cifar10.npz and cifar100.npz")
    missing = [name for name in REAL_FILES[:2] if not Path(folder, name).is_file()]
    assert not missing, f"{REAL_DATA}={folder} lacks {' and '.join(missing)}"
    root = tmp_path / "data"
    root.mkdir()
    for source in drawn.iterdir():
        (root / source.name).symlink_to(source)
    for name in filter(lambda name: Path(folder, name).is_file(), REAL_FILES):
        with np.load(Path(folder, name)) as arrays:
            np.savez(root / name, **{key: arrays[key][: REAL_IMAGES.get(key)] for key in arrays.files})
    return root


@pytest.mark.slow
def test_every_table_and_figure_runs_from_end_to_end(everything_root, tmp_path):
    """All trainings of the paper."""
    out = tmp_path / "all"
    words = ("reproduce", "all", "--seeds", "1", "--jobs", "2", "--data-root", everything_root, "--out", out)
    _, err, code = isda(*words, "--json", tmp_path / "made.json")
    assert code is None, err
    everything = json.loads((tmp_path / "made.json").read_text())
    for made in everything:
        assert not made["problems"], made["name"]
        assert all(Path(page).is_file() for page in made["pages"])
        assert len(set(made["pages"])) == len(made["pages"])
        for cell in made["cells"]:
            if cell["column"] in ("mAP_S", "mAP_M", "mAP_L"):  # the drawn objects are not of all sizes
                continue
            # What the paper leaves out and what it repeats of others stays empty.
            own = (
                cell["paper"] != "-" and "reported" not in cell["column"] and "DeepLab-v3 (Original)" not in cell["row"]
            )
            assert (cell["mean"] is not None) == own, (made["name"], cell)
