"""The commands train, compare, evaluate and predict as a user types them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from isda.lab.data import load
from isda.lab.engine.comparison import run_folder_name
from isda.lab.engine.config import CONFIG_FORMAT
from isda.lab.train import Hook, Saving, Settings, load_trained, resolve, train
from small_runs import SMALL, SMALL_WORDS, digits, isda, small_config, train_small

FILES = {
    *(".lock", "config.json", "environment.json", "metrics.jsonl", "result.json", "model.safetensors", "tensorboard"),
    "predictions.safetensors",
}


def run_process(*words, cwd):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "isda", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def save_digits(folder, count):
    paths = [folder / f"digit-{i}.png" for i in range(count)]
    for path, image in zip(paths, digits().x_test[:count], strict=True):
        Image.fromarray(image[0].numpy()).save(path)
    return paths


def interrupted(folder, **changes):
    """A run that was killed in its second epoch."""

    class Killed(Exception):
        pass

    class Kill(Hook):
        def step(self, step):
            if step == 8:
                raise Killed

    with pytest.raises(Killed):
        train(small_config(**changes), digits(), folder, saving=Saving(steps=3), hooks=[Kill()])


# -- train -------------------------------------------------------------------------------------------------------------


def test_train_writes_a_run_folder_and_says_the_error_and_the_scale(tmp_path):
    done = run_process("train", *SMALL_WORDS, "--seed", 3, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "runs" / "digits-fast-cnn-isda-seed3"
    assert {path.name for path in folder.iterdir()} == FILES
    result = json.loads((folder / "result.json").read_text())
    expected = f"test error {result['error']:.2f}% (mean of the last 1 of 2 epochs, custom scale); "
    assert done.stdout.splitlines()[-1] == expected + "runs/digits-fast-cnn-isda-seed3"
    assert json.loads((folder / "config.json").read_text())["seed"] == 3


def test_train_does_what_the_function_does(tmp_path, finished_run):
    train_small(tmp_path / "run")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (finished_run / name).read_bytes()
    mine, theirs = (json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "run", finished_run))
    assert mine | {"seconds": 0} == theirs | {"seconds": 0}


def test_the_smoke_scale_is_said_everywhere(tmp_path):
    words = ["--labels", 100, "--batch-size", 50, "--width", 0.1, "--scale", "smoke", "--out", tmp_path / "run"]
    out, _, _ = isda("train", *words)
    assert "(smoke scale)" in out.splitlines()[0]
    assert out.splitlines()[-1].endswith(f"1 of 1 epochs, smoke scale); {tmp_path / 'run'}")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["scale"] == "smoke"


def test_a_finished_run_is_neither_repeated_nor_overwritten(tmp_path):
    train_small(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    out, _, code = train_small(tmp_path / "run", "--resume")
    assert (out, code) == (f"{tmp_path / 'run'} is finished already\n", None)
    _, _, code = train_small(tmp_path / "run")
    assert code == f"isda: {tmp_path / 'run'} holds a run already; add --resume to resume it, or choose another --out"
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_resume_goes_on_with_the_settings_of_the_run(tmp_path, finished_run):
    interrupted(tmp_path / "run")
    out, _, code = isda("train", "--out", tmp_path / "run", "--resume")
    assert code is None
    assert "resumed after step 6 of 10" in out
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


def test_resume_starts_a_run_where_there_is_none(tmp_path):
    _, _, code = train_small(tmp_path / "run", "--resume")
    assert code is None
    assert (tmp_path / "run" / "result.json").is_file()


def test_resume_with_another_setting_is_refused(tmp_path):
    interrupted(tmp_path / "run")
    _, _, code = isda("train", "--out", tmp_path / "run", "--resume", "--seed", 5)
    assert code == f"isda: {tmp_path / 'run'} holds a run with seed=0, not 5; choose another folder for this one"


@pytest.mark.parametrize(
    "words", [["--method", "isda"], ["--scale", "paper", "--epochs", "2", "--precision", "float32"]]
)
def test_resume_with_a_default_said_aloud_is_compared_as_well(tmp_path, words):
    interrupted(tmp_path / "run", method="cross-entropy", precision="float64")
    _, _, code = isda("train", "--out", tmp_path / "run", "--resume", *words)
    assert "choose another folder" in str(code)


def test_resume_with_another_seed_is_refused_even_if_it_is_0(tmp_path):
    interrupted(tmp_path / "run", seed=3)
    _, _, code = isda("train", "--out", tmp_path / "run", "--resume", "--seed", 0)
    assert "seed=3, not 0" in str(code)


def test_resume_remembers_a_zero(tmp_path):
    interrupted(tmp_path / "run", weight_decay=0.0)
    _, _, code = isda("train", "--out", tmp_path / "run", "--resume")
    assert code is None


def test_a_finished_run_is_not_trained_again(tmp_path):
    train_small(tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns
    result = train(small_config(), digits(), tmp_path / "run")
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="holds a run with seed=0, not 5"):
        train(small_config(seed=5), digits(), tmp_path / "run")


def test_training_into_the_folder_of_another_run_is_refused(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(ValueError, match="holds a run with seed=0, not 5"):
        train(small_config(seed=5), digits(), tmp_path)


def test_a_damaged_configuration_is_named(tmp_path):
    interrupted(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"format": 1, "data"')
    _, _, code = isda("train", "--out", tmp_path / "run", "--resume")
    assert code.startswith(f"isda: {tmp_path / 'run' / 'config.json'} is not JSON")


@pytest.mark.parametrize("words", [["report", "{}"], ["evaluate", "{}"], ["train", "--resume", "--out", "{}"]])
@pytest.mark.parametrize("age", ["an earlier", "a newer"])
def test_a_run_of_another_version_is_refused_in_one_sentence(tmp_path, finished_run, words, age):
    shutil.copytree(finished_run, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    other = CONFIG_FORMAT + (1 if age == "a newer" else -1)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": other}))
    files = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    _, _, code = isda(*[word.format(tmp_path / "run") for word in words])
    assert f"of format {CONFIG_FORMAT}, got {other}; {age} version of isda wrote it" in code
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--network", "resnet20"], r"did you mean 'resnet-20'\?"),
        (["--method", "isda-titled"], r"did you mean 'isda-tilted'\?"),
        (["--method", "isda:lamda_0=1"], r"did you mean 'lambda_0'\?"),
        (["--method", "isda:covariance=diag"], "covariance must be one of full, diagonal, .* got 'diag'"),
        (["--data", "digts"], r"unknown data set 'digts'; did you mean 'digits'\?"),
        (["--augment", "crop-flp"], r"did you mean 'crop-flip'\?"),
        (["--network-options", "groups", "2"], "fast-cnn has no option 'groups'; it takes in_channels, width, dropout"),
        (["--device", "gpu"], "device must be auto, cpu or one that torch finds here, got 'gpu'"),
        (["--device", "meta"], "device must be auto, cpu or one that torch finds here, got 'meta'"),
        (["--checkpoint-steps", "0"], "steps between checkpoints must be at least 1, got 0"),
        (["--checkpoint-minutes", "nan"], "minutes between checkpoints must be more than 0, got nan"),
        (["--method", "isda:rank=3"], "rank is for covariance=low_rank or learned, got covariance=full"),
        (["--method", "cross-entropy:label_smoothing=2"], "label_smoothing must lie in 0..1, got 2.0"),
        (["--lr", "nan"], "lr must be a finite number >= 0, got nan"),
        (["--labels", "1290"], "labels=1290 does not fit digits: .* asks for 129 samples of class"),
        (["--network-options", "widht", "2"], r"fast-cnn has no option 'widht'; did you mean 'width'\?"),
        (["--threads", "0"], "threads must be from 1 to 1024, got 0"),
        (["--threads", "2147483648"], "threads must be from 1 to 1024, got 2147483648"),
        (["--workers", "2147483648"], "workers must be from 1 to 1024, got 2147483648"),
        (["--lr", "1e308"], r"lr must be at most 1e\+30, got 1e\+308"),
        (["--weight-decay", "1e308"], r"weight_decay must be at most 1e\+30, got 1e\+308"),
        (["--keep", "0"], "keep must be at least 1, got 0"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--lambda-0", "nan"], "lambda_0 must be a finite number, got nan"),
    ],
)
def test_a_wrong_value_ends_in_one_sentence_and_leaves_nothing(tmp_path, words, message):
    _, _, code = train_small(tmp_path / "run", *words)
    assert re.search(message, str(code))
    assert str(code).startswith("isda: ")
    assert "\n" not in str(code)
    assert not (tmp_path / "run").exists()


def save_mixed_sizes(folder):
    for name in ("left", "right"):
        (folder / name).mkdir(parents=True)
        for side in range(40, 50):
            Image.new("RGB", (side, 40)).save(folder / name / f"{side}.png")
    return folder


def test_images_of_mixed_sizes_need_an_augmentation_that_crops_them(tmp_path):
    words = ["--data", save_mixed_sizes(tmp_path / "mixed"), "--labels", 4, "--batch-size", 4, "--augment", "none"]
    _, _, code = train_small(tmp_path / "run", *words)
    assert re.search(
        "augment must be imagenet or resized-crop for images that .* may differ in size, as those of mixed do",
        str(code),
    )
    assert not (tmp_path / "run").exists()


def test_images_too_small_for_their_augmentation_are_named(tmp_path):
    images, labels = np.zeros((20, 3, 3), np.uint8), np.arange(20) % 10
    np.savez(tmp_path / "tiny.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    words = ["--data", tmp_path / "tiny.npz", "--labels", 20, "--augment", "crop-flip"]
    _, _, code = train_small(tmp_path / "run", *words)
    assert str(code).startswith("isda: augment=crop-flip is not for the images of tiny: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "words", "suggestion"),
    [
        ("train", ["--netwrok", "resnet-8"], "--network"),
        ("train", ["--bach-size", "3"], "--batch-size"),
        ("compare", ["--sedes", "3"], "--seeds"),
        ("predict", ["run", "image.png", "--tpo", "3"], "--top"),
    ],
)
def test_a_misspelt_option_suggests_the_right_one(command, words, suggestion):
    _, err, code = isda(command, *words)
    assert code == 2
    assert suggestion in err


def test_a_misspelt_choice_lists_the_choices():
    _, err, code = isda("train", "--precision", "fp8")
    assert code == 2
    assert all(choice in err for choice in ("float32", "float64", "bfloat16", "float16"))


@pytest.mark.parametrize(("word", "suggestion"), [("trian", "train"), ("predit", "predict"), ("compair", "compare")])
def test_a_misspelt_command_suggests_the_right_one(word, suggestion):
    _, _, code = isda(word)
    assert code == f"isda: no command {word!r}; did you mean {suggestion!r}?"


# -- data that moves or changes ----------------------------------------------------------------------------------------


def save_npz(path, **changes):
    """Some digits as a data set of one's own."""
    data = digits()
    arrays = {
        "x_train": data.x_train[:400, 0].numpy(),
        "y_train": data.y_train[:400].numpy(),
        "x_test": data.x_test[:50, 0].numpy(),
        "y_test": data.y_test[:50].numpy(),
        "classes": np.array(data.classes),
    }
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **(arrays | changes))
    return path


def unfinished(folder):
    """Make a finished run one that was killed before its end."""
    (folder / "result.json").unlink()
    return folder


def test_a_relative_path_to_the_data_is_found_from_another_folder(tmp_path, monkeypatch):
    save_npz(tmp_path / "here" / "few.npz")
    monkeypatch.chdir(tmp_path / "here")
    assert train_small(tmp_path / "run", "--data", "few.npz")[2] is None
    monkeypatch.chdir(tmp_path)
    assert isda("evaluate", tmp_path / "run")[2] is None
    assert isda("train", "--resume", "--out", unfinished(tmp_path / "run"))[2] is None
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"] == "few"


def test_data_that_moved_may_be_named_anew(tmp_path):
    train_small(tmp_path / "run", "--data", save_npz(tmp_path / "here" / "few.npz"))
    (tmp_path / "here").rename(tmp_path / "there")
    _, _, code = isda("train", "--resume", "--out", unfinished(tmp_path / "run"))
    assert code == f"isda: {tmp_path / 'here' / 'few.npz'} does not exist"
    _, _, code = isda("train", "--resume", "--out", tmp_path / "run", "--data", tmp_path / "there" / "few.npz")
    assert code is None


@pytest.mark.parametrize(
    "change",
    [
        {"y_train": np.roll(digits().y_train[:400].numpy(), 1)},
        {"y_test": np.roll(digits().y_test[:50].numpy(), 1)},
        {"x_test": digits().x_test[:40, 0].numpy(), "y_test": digits().y_test[:40].numpy()},
        {"classes": np.array(digits().classes[::-1])},
    ],
)
def test_resume_notices_data_that_changed(tmp_path, change):
    path = save_npz(tmp_path / "few.npz")
    train_small(tmp_path / "run", "--data", path)
    save_npz(path, **change)
    _, _, code = isda("train", "--resume", "--out", unfinished(tmp_path / "run"))
    assert str(code).startswith(f"isda: {tmp_path / 'run'}: the data set has changed since the run was started; ")


def test_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        interrupted(tmp_path / "killed")
        train_small(tmp_path / "run")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".pt" for path in files)
    assert {path: oct(path.stat().st_mode & 0o777) for path in files} == dict.fromkeys(files, "0o640")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "cross-entropy", "--lambda-0", 1], "--lambda-0 1.0 has no effect on method cross-entropy"),
        (["--method", "isda:lambda_0=2", "--lambda-0", 1], "--lambda-0 1.0 has no effect beside lambda_0=2.0 in the"),
    ],
)
def test_a_strength_that_is_not_used_is_a_warning(tmp_path, words, message):
    with pytest.warns(UserWarning, match=message):
        train_small(tmp_path / "run", *words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.zeros(400, int), "y_test": np.zeros(50, int), "classes": ["one"]}, "few has one class only"),
        ({"y_train": np.arange(400) % 9 + 1}, "1 of 10 classes of few have no training images, .*'0'; labels count"),
        ({"y_train": np.arange(400) % 8}, "2 of 10 classes of few have no training images, the first of them '8'$"),
    ],
)
def test_odd_classes_are_a_warning(tmp_path, change, message):
    path = save_npz(tmp_path / "few.npz", **change)
    with pytest.warns(UserWarning, match=message):
        resolve(Settings(**(SMALL | {"data": str(path), "labels": None})), load(path))


def test_a_narrow_ascii_terminal_gets_no_escapes_and_no_traceback(tmp_path, monkeypatch):
    path = save_npz(tmp_path / "few.npz", classes=np.array(["\x1b[31mred", "caf\u00e9", *"cdefghij"]))
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("COLUMNS", "40")
    command = [sys.executable, "-m", "isda", "data", str(path)]
    done = subprocess.run(command, capture_output=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert b"\\x1b[31mred" in done.stdout.replace(b"\n", b"")
    assert b"caf\\xe9" in done.stdout.replace(b"\n", b"")


# -- evaluate and predict ----------------------------------------------------------------------------------------------


def test_evaluate_prints_every_measure_with_its_unit(finished_run):
    result = json.loads((finished_run / "result.json").read_text())
    out, _, code = isda("evaluate", finished_run)
    assert code is None
    first, *lines = out.splitlines()
    assert first == "fast-cnn, isda, custom scale, seed 0, on the test images of digits"
    assert [line.strip().rsplit(None, 1)[0] for line in lines] == [
        "test error, %",
        "test top-5 error, %",
        "test negative log-likelihood",
        "test calibration error, %",
    ]
    figures = [float(line.split()[-1]) for line in lines]
    expected = [result[name] for name in ("error_last", "error_top5", "nll", "calibration")]
    assert figures == pytest.approx(expected, abs=6e-4)


def test_evaluate_as_json_to_a_file_or_the_standard_output(finished_run, tmp_path):
    out, _, _ = isda("evaluate", finished_run, "--json", tmp_path / "new" / "figures.json")
    assert out.startswith("fast-cnn")
    written = json.loads((tmp_path / "new" / "figures.json").read_text())
    out, _, _ = isda("evaluate", finished_run, "--json", "-")
    assert json.loads(out) == written
    assert written["run"] == str(finished_run)
    assert (written["data"], written["evaluated_on"]) == ("digits", "test")
    assert written["scale"] == "custom"
    assert written["error"] == pytest.approx(json.loads((finished_run / "result.json").read_text())["error_last"])


def test_evaluate_on_another_data_set_uses_its_test_images(finished_run, tmp_path):
    data = digits()
    images, labels = (data.x_test[:40].permute(0, 2, 3, 1).numpy(), data.y_test[:40].numpy())
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images, y_test=labels, classes=data.classes)
    out, _, code = isda("evaluate", finished_run, "--data", tmp_path / "few.npz", "--json", "-")
    assert code is None
    trained, config = load_trained(finished_run), small_config()
    with torch.no_grad():
        logits = trained.network((data.x_test[:40].float() / 255 - config.mean[0]) / config.std[0])
    wrong = (logits.argmax(1) != data.y_test[:40]).sum()
    assert json.loads(out)["error"] == pytest.approx(100 * float(wrong) / 40)


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_folder_without_a_run_is_named(command, tmp_path):
    images = save_digits(tmp_path, 1) if command == "predict" else []
    _, _, code = isda(command, tmp_path / "nothing", *images)
    assert code == f"isda: no run in {tmp_path / 'nothing'}: it does not exist"


def test_where_one_run_is_expected_the_runs_of_a_folder_are_listed(finished_run):
    _, _, code = isda("evaluate", finished_run.parent)
    assert "is not a run but holds runs; name one: " in code
    assert finished_run.as_posix() in code


def test_an_image_file_that_does_not_exist_is_named(finished_run, tmp_path):
    assert isda("predict", finished_run, tmp_path / "cat.png")[2] == f"isda: {tmp_path / 'cat.png'} does not exist"


def test_a_run_is_exported_as_an_onnx_graph_with_its_outputs(finished_run, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert "out must be the name of an .onnx file" in isda("export", finished_run, "--for", "onnx", "--out", "a.pth")[2]
    out, _, code = isda("export", finished_run, "--for", "onnx", "--out", tmp_path / "a.onnx")
    assert (code, out) == (None, f"fast-cnn of {finished_run} as an ONNX graph: {tmp_path / 'a.onnx'}\n")
    session = runtime.InferenceSession(tmp_path / "a.onnx")
    trained = load_trained(finished_run)
    described = json.loads(session.get_modelmeta().custom_metadata_map["isda"])
    assert described["classes"] == list(trained.config.classes)
    assert described["mean"] == list(trained.config.mean)
    for count in (1, 5):
        images = torch.randn(count, 1, 8, 8)
        with torch.no_grad():
            expected = trained.network(images)
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-5, atol=1e-5)


def test_predict_says_what_the_network_says(finished_run, tmp_path):
    paths = save_digits(tmp_path, 4)
    out, _, code = isda("predict", finished_run, *paths, "--top", 2)
    assert code is None
    trained, config = load_trained(finished_run), small_config()
    with torch.no_grad():
        logits = trained.network((digits().x_test[:4].float() / 255 - config.mean[0]) / config.std[0])
    best = logits.softmax(1).topk(2)
    for line, path, values, classes in zip(out.splitlines(), paths, best.values, best.indices, strict=True):
        first, second = (f"{c} {100 * p:.1f}%" for c, p in zip(classes.tolist(), values.tolist(), strict=True))
        assert line == f"{path}: {first}, {second}"


def test_predict_as_a_process_with_json(finished_run, tmp_path):
    paths = save_digits(tmp_path, 2)
    done = run_process("predict", finished_run, *paths, "--json", "-", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    records = json.loads(done.stdout)
    assert [record["image"] for record in records] == [str(path) for path in paths]
    probabilities = load_trained(finished_run).probabilities(paths)
    for record, row in zip(records, probabilities, strict=True):
        best = row.topk(3)
        assert [entry["name"] for entry in record["classes"]] == [str(i) for i in best.indices.tolist()]
        assert [entry["probability"] for entry in record["classes"]] == pytest.approx(best.values.tolist(), rel=1e-5)


def test_predict_writes_json_beside_the_text(finished_run, tmp_path):
    paths = save_digits(tmp_path, 1)
    out, _, _ = isda("predict", finished_run, *paths, "--json", tmp_path / "seen.json", "--top", 100)
    assert out.startswith(f"{paths[0]}: ")
    (record,) = json.loads((tmp_path / "seen.json").read_text())
    assert sorted(entry["name"] for entry in record["classes"]) == [str(i) for i in range(10)]
    assert sum(entry["probability"] for entry in record["classes"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "images must name at least one image file, got none"),
        (["digit-0.png", "--top", "0"], "top must be at least 1, got 0"),
        (["nowhere.png"], "nowhere.png does not exist"),
        (["words.png"], "words.png cannot be read as an image"),
    ],
)
def test_predict_names_what_it_cannot_read(finished_run, tmp_path, monkeypatch, words, message):
    save_digits(tmp_path, 1)
    (tmp_path / "words.png").write_text("words")
    monkeypatch.chdir(tmp_path)
    _, _, code = isda("predict", finished_run, *words)
    assert message in str(code)


# -- compare -----------------------------------------------------------------------------------------------------------


METHODS = ["--methods", "cross-entropy", "isda:lambda_0=2", "--seeds", 2]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two methods, two seeds, two at a time: the folder, what the command printed, and its remarks."""
    folder = tmp_path_factory.mktemp("comparison") / "runs"
    words = ["--jobs", 2, "--json", folder / "table.json"]
    out, err, code = isda("compare", *SMALL_WORDS, "--out", folder, *METHODS, *words)
    assert code is None
    return folder, out, err


def test_compare_trains_every_method_with_every_seed(comparison):
    folder, _, err = comparison
    runs = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("result.json"))
    methods = ("cross-entropy", "isda-lambda_0=2")
    assert runs == [f"{method}/seed-{seed}" for method in methods for seed in (0, 1)]
    lines = sorted(err.splitlines())
    assert [line.split(":")[0] for line in lines] == ["run 1/4", "run 2/4", "run 3/4", "run 4/4"]
    assert all(re.search(r"/seed-[01] test error \d+\.\d\d%$", line) for line in lines)
    assert all({path.name for path in (folder / run).iterdir()} == FILES for run in runs)


def test_compare_ends_with_the_table_and_the_page(comparison):
    folder, out, _ = comparison
    assert "cross-entropy" in out
    assert "isda" in out
    assert out.splitlines()[-1] == f"The page is {folder / 'report.html'}"
    assert (folder / "report.html").stat().st_size > 1000
    assert json.loads((folder / "table.json").read_text())


def test_runs_of_a_comparison_are_those_of_train(comparison, tmp_path):
    folder, _, _ = comparison
    train(small_config(method="isda:lambda_0=2", seed=1), digits(), tmp_path)
    run = folder / "isda-lambda_0=2" / "seed-1"
    mine, theirs = (json.loads((path / "result.json").read_text()) for path in (run, tmp_path))
    assert mine | {"seconds": 0} == theirs | {"seconds": 0}


def test_compare_again_repeats_nothing(comparison):
    folder, _, _ = comparison
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")}
    out, _, code = isda("compare", *SMALL_WORDS, "--out", folder, *METHODS, "--json", "-")
    assert code is None
    assert json.loads(out) == json.loads((folder / "table.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("metrics.jsonl")} == stamps


def test_compare_says_how_many_seeds_a_difference_needs(comparison, tmp_path):
    folder, out, _ = comparison
    assert "To tell a difference" not in out
    out, _, code = isda("compare", *SMALL_WORDS, "--out", folder, *METHODS, "--plan", 1, "--json", tmp_path / "t.json")
    assert code is None
    (record,) = json.loads((tmp_path / "t.json").read_text())
    assert record["plan"]["difference"] == 1
    assert f"{record['plan']['seeds_needed']} seeds are needed" in " ".join(out.split())
    _, _, code = isda("compare", *SMALL_WORDS, "--out", tmp_path / "new", *METHODS, "--plan", -1)
    assert "plan must be a positive difference, got -1" in code
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "isda", "isda"], r"methods must be given, each once, got \['isda', 'isda'\]"),
        (["--methods"], "methods must be given, each once, got "),
        (["--methods", "isda", "isda-titled"], r"did you mean 'isda-tilted'\?"),
        (["--method", "isda"], "compare takes --methods, not --method"),
        (["--methods", "cross-entropy", "isda:covariance=ful"], r"did you mean 'full'\?"),
        (["--seeds", "0"], "seeds must be from 1 to 1000, got 0"),
        (["--jobs", "0"], "jobs must be from 1 to 10000, got 0"),
        (["--network", "resnet20"], r"did you mean 'resnet-20'\?"),
    ],
)
def test_compare_refuses_before_anything_is_trained(tmp_path, words, message):
    _, _, code = isda("compare", *SMALL_WORDS, "--out", tmp_path / "runs", *words)
    assert re.search(message, str(code))
    assert not (tmp_path / "runs").exists()


def test_compare_does_not_mix_with_another_comparison(comparison):
    folder, _, _ = comparison
    words = ["--out", folder, "--methods", "cross-entropy", "--seeds", 1, "--lr", 0.01]
    _, _, code = isda("compare", *SMALL_WORDS, *words)
    assert "cross-entropy/seed-0 holds a run with lr=0.1, not 0.01; choose another folder" in str(code)


def test_compare_takes_data_by_its_path(tmp_path, monkeypatch):
    """Worker processes load it by themselves."""
    save_npz(tmp_path / "here" / "few.npz")
    monkeypatch.chdir(tmp_path / "here")
    words = ["--data", "few.npz", "--methods", "cross-entropy", "--seeds", 1, "--out", tmp_path / "runs"]
    assert isda("compare", *SMALL_WORDS, *words)[2] is None
    assert (tmp_path / "runs" / "cross-entropy" / "seed-0" / "result.json").is_file()


def test_the_folder_of_a_run_says_its_method():
    assert run_folder_name("isda:lambda_0=2,memory=30", 3) == Path("isda-lambda_0=2-memory=30/seed-3")
    assert run_folder_name("cross-entropy", 0) == Path("cross-entropy/seed-0")


def test_numbers_with_a_point_are_no_code_of_ones_own(tmp_path):
    method = "isda:covariance=diagonal,memory=30"
    interrupted(tmp_path / "run", method=method)
    _, _, code = isda("train", "--out", tmp_path / "run", "--resume")
    assert code is None


def test_an_option_equal_to_its_default_is_not_dropped_when_a_run_is_resumed(tmp_path):
    assert train_small(tmp_path / "run", "--channels-last", "--epochs", "1")[2] is None
    resumed = ["train", "--out", tmp_path / "run", "--resume"]
    assert "channels_last=True, not False" in isda(*resumed, "--no-channels-last")[2]
    assert isda(*resumed, "--channels-last")[2] is None
    assert isda(*resumed)[2] is None


@pytest.mark.parametrize(
    "words",
    [
        ["compare"],
        ["tune"],
        ["tune", "--choose-seeds"],
        ["reproduce", "table-2"],
        ["segment", "compare", "--data", "nowhere"],
        ["segment", "tune", "--data", "nowhere"],
        ["detect", "compare", "--data", "nowhere", "--methods", "multi-task:backbone=nowhere"],
    ],
    ids=" ".join,
)
def test_more_seeds_than_a_plan_can_hold_are_refused_at_once(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option = [] if words[-1] == "--choose-seeds" else ["--seeds"]
    code = isda(*words, *option, 2147483648)[2]
    assert re.fullmatch(r"isda: (choose_)?seeds must be from 1 to 1000, got 2147483648", code)
    assert not list(tmp_path.iterdir())
