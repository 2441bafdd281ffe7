"""Backbones of finished runs on other data: what they see, where training begins, and the command as a user runs it."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from isda.lab.cli import main
from isda.lab.data import DataSet
from isda.lab.data.augment.compose import convert_channels
from isda.lab.engine import Processes, RunContext, train
from isda.lab.tasks.classification.trained import load_classifier
from isda.lab.tasks.transfer.features import adapt_images, extract_features, load_source
from isda.lab.tasks.transfer.fine_tuning import FineTuning, FineTuningSettings
from isda.lab.tasks.transfer.linear_probe import LinearProbing, ProbeSettings
from small_runs import digits, small_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def backbones(tmp_path_factory) -> Path:
    """Two methods, two seeds."""
    top = tmp_path_factory.mktemp("backbones")
    for method in ("cross-entropy", "isda"):
        for seed in (0, 1):
            train(small_config(method=method, seed=seed), digits(), top / method / f"seed-{seed}")
    return top


def coloured(data: DataSet, size: int = 8) -> DataSet:
    """The digits in colour, larger, with other classes: even and odd."""

    def made(images):
        return images.repeat_interleave(size // 8, 2).repeat_interleave(size // 8, 3).repeat(1, 3, 1, 1)

    train_part, test_part = made(data.x_train[:200]), made(data.x_test[:100])
    return DataSet(
        "coloured", train_part, data.y_train[:200] % 2, test_part, data.y_test[:100] % 2, classes=("even", "odd")
    )


def test_channels_are_what_the_backbone_takes():
    grey = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    assert torch.equal(convert_channels(grey, 3), grey.repeat(1, 3, 1, 1))
    assert torch.equal(convert_channels(grey.repeat(1, 3, 1, 1), 1), grey)
    green = torch.zeros(1, 3, 1, 1, dtype=torch.uint8)
    green[:, 1] = 200
    assert convert_channels(green, 1).item() == 117, "0.587 of 200"
    with pytest.raises(ValueError, match="1, 3 or the 1 channels that the backbone takes, got 2"):
        convert_channels(torch.zeros(1, 2, 1, 1, dtype=torch.uint8), 1)


def test_features_are_those_that_the_classifier_reads(backbones):
    trained = load_classifier(backbones / "isda" / "seed-0")
    data = digits()
    rows = extract_features(trained, data.x_test, torch.arange(10), CPU)
    logits = trained.network(trained.pipeline(data.x_test[:10]))
    read = trained.network.classifier(rows.to(logits.dtype))
    torch.testing.assert_close(read, logits)


def test_other_sizes_and_channels_are_fitted(backbones):
    trained, data = load_classifier(backbones / "isda" / "seed-0"), digits()
    same = extract_features(trained, coloured(data).x_test, torch.arange(20), CPU)
    torch.testing.assert_close(same, extract_features(trained, data.x_test, torch.arange(20), CPU))
    large = coloured(data, size=16)
    small = F.interpolate(large.x_test[:, :1].float(), (8, 8), mode="bilinear", antialias=True).round().byte()
    assert (adapt_images(large, trained.config).x_test.int() - small.int()).abs().max() <= 1, "but for rounding"
    mine = extract_features(trained, large.x_test, torch.arange(20), CPU)
    assert torch.equal(
        mine, extract_features(trained, adapt_images(large, trained.config).x_test, torch.arange(20), CPU)
    )


def test_fine_tuning_begins_with_the_backbone_and_a_new_classifier(backbones, tmp_path):
    source = backbones / "isda" / "seed-1"
    task, data = FineTuning(), coloured(digits())
    settings = FineTuningSettings(source=str(source), epochs=1, batch_size=50, augment="none")
    config = task.resolve(settings, data)
    network = task.network_for(config, RunContext(Processes(0, 1, CPU), tmp_path))
    stored = load_file(source / "model.safetensors")
    body = {f"body.{name}": value for name, value in network.body.state_dict().items()}
    assert body
    assert all(torch.equal(value, stored[name]) for name, value in body.items())
    assert network.classifier.out_features == 2
    assert (config.method, config.seed, config.lr) == ("isda", 1, 0.01)
    assert config.mean == load_classifier(source).config.mean, "pixels are normalised as the backbone knows them"


def test_what_the_backbone_decides_cannot_be_asked_for(backbones):
    settings = FineTuningSettings(source=str(backbones / "isda" / "seed-0"), network="resnet-20")
    with pytest.raises(ValueError, match="network is the backbone's when it is fine-tuned, got 'resnet-20'"):
        FineTuning().resolve(settings, digits())


def test_a_backbone_that_changed_is_not_taken_for_the_planned_one(backbones, tmp_path):
    settings = ProbeSettings(source=str(backbones / "isda" / "seed-0"))
    config = LinearProbing().resolve(settings, digits())
    changed = load_source(backbones / "isda" / "seed-1")
    moved = type(config)(**{**vars(config), "source": str(changed.folder)})
    with pytest.raises(ValueError, match="holds another network than when the probe was planned"):
        LinearProbing().start(moved, digits(), RunContext(Processes(0, 1, CPU), tmp_path))


@pytest.fixture(scope="module")
def transferred(backbones, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("transferred") / "out"
    words = ["--data", "digits", "--how", "probe", "fine-tune", "--labels", "60", "--epochs", "1", "--batch-size", "20"]
    main(["transfer", str(backbones), *words, "--out", str(out), "--json", str(out) + ".json"])
    return out


def test_the_command_pairs_methods_by_the_seeds_of_their_backbones(transferred):
    tables = json.loads(Path(f"{transferred}.json").read_text())
    assert [table["task"] for table in tables] == ["linear-probe", "fine-tuning"]
    for table in tables:
        assert table["baseline"] == "cross-entropy"
        assert [(method["method"], method["seeds"]) for method in table["methods"]] == [
            ("cross-entropy", 2),
            ("isda", 2),
        ]
        assert len(table["methods"][1]["differences"]) == 2
    assert tables[0]["title"] == "digits with fast-cnn, task=linear-probe"
    assert (transferred / "report.html").stat().st_size > 10_000


def test_a_probe_is_worth_what_its_folder_says(transferred, backbones):
    folder = transferred / "linear-probe" / "digits" / "isda" / "seed-1"
    weights = load_file(folder / "model.safetensors")
    trained, data = load_classifier(backbones / "isda" / "seed-1"), digits()
    rows = extract_features(trained, data.x_test, torch.arange(len(data.y_test)), CPU)
    wrong = ((rows @ weights["weight"].T + weights["bias"]).argmax(1) != data.y_test).double().mean()
    assert json.loads((folder / "result.json").read_text())["error"] == pytest.approx(100 * float(wrong))


def test_the_command_repeats_nothing(transferred, backbones):
    stamps = {path: path.stat().st_mtime_ns for path in transferred.rglob("model.safetensors")}
    words = ["--data", "digits", "--how", "probe", "--labels", "60"]
    main(["transfer", str(backbones), *words, "--out", str(transferred)])
    assert {path: path.stat().st_mtime_ns for path in transferred.rglob("model.safetensors")} == stamps


def test_a_fine_tuned_run_is_evaluated_like_any_other(transferred, capsys):
    folder = transferred / "fine-tuning" / "digits" / "isda" / "seed-0"
    main(["evaluate", str(folder), "--json", "-"])
    measured = json.loads(capsys.readouterr().out)
    assert measured["error"] == pytest.approx(json.loads((folder / "result.json").read_text())["error_last"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "digits", "digits"], "data must be given, each once"),
        (["--data", "digits", "--lr", "0.1"], "lr is a setting of fine-tuning; add --how fine-tune"),
        (["--data", "digits", "--labels", "99999"], "labels must be from 1 to 1297"),
        (["--data", "digitz"], "digitz"),
    ],
)
def test_bad_words_are_refused_before_a_folder_is_made(words, message, backbones, tmp_path):
    with pytest.raises(SystemExit, match=message):
        main(["transfer", str(backbones), *words, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_an_unfinished_backbone_is_refused(backbones, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_bytes((backbones / "isda" / "seed-0" / "config.json").read_bytes())
    with pytest.raises(SystemExit, match="is not finished"):
        main(["transfer", str(run), "--data", "digits", "--out", str(tmp_path / "out")])
