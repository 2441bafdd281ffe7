"""config.json: what is written is what is read, and a damaged file is named with what is wrong with it."""

import json
from dataclasses import fields, replace

import pytest

from isda.lab.train import Config
from small_runs import small_config

CASES = {
    "plain": {},
    "everything": {
        "network": "resnet-8",
        "method": "isda-tilted:lambda_0=2,memory=30,covariance=diagonal",
        "ema": 0.9,
        "held_out": 50,
        "precision": "float64",
        "channels_last": True,
        "lr": 0.1 + 0.2,
        "network_options": {"in_channels": "1"},
    },
}


def written(tmp_path, changes):
    path = tmp_path / "config.json"
    path.write_text(small_config(**changes).as_json())
    return path


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read_back_equal(case, tmp_path):
    config = small_config(**CASES[case])
    assert Config.read(written(tmp_path, CASES[case])) == config
    assert config.differences(Config.read(tmp_path / "config.json")) == {}


def test_the_file_is_a_flat_object_with_the_number_of_steps(tmp_path):
    stored = json.loads(written(tmp_path, {}).read_text())
    assert stored["format"] == 3
    assert stored["steps_per_epoch"] == 5
    elsewhere = {"lambda_0", "width", "dropout", "generated_share", "warm_up"}
    assert {field.name for field in fields(Config)} - elsewhere | {"of_method", "of_run"} == set(stored)
    assert stored["network_options"]["width"] == 0.25


def test_a_setting_of_a_later_version_is_passed_over(tmp_path):
    path = written(tmp_path, {})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour_of_the_curtains": "green"}))
    assert Config.read(path) == small_config()


def test_steps_are_counted_in_full_batches():
    config = small_config(labels=99, batch_size=20, epochs=3)
    assert (config.steps_per_epoch, config.total_steps) == (4, 12)


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5, 6, 7, 8]), (3, [3, 6, 7, 8]), (100, [7, 8])])
def test_the_error_is_measured_every_so_often_and_in_all_epochs_that_are_averaged(every, expected):
    # A window of 2 of 8 epochs.
    config = replace(small_config(epochs=8, evaluate_every=every), average_last=2)
    assert [epoch for epoch in range(1, 9) if config.evaluates(epoch)] == expected


def test_differences_name_the_setting_and_both_values():
    mine, other = small_config(seed=1), small_config(seed=2, method="cross-entropy")
    assert mine.differences(other)["seed"] == (1, 2)
    assert mine.differences(other)["method"] == ("isda", "cross-entropy")
    assert set(mine.differences(other)) == {"seed", "method", "method_options"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "config.json is not JSON"),
        (lambda text: "", "config.json is not JSON"),
        (lambda text: "[]", "config.json must hold a JSON object, got list"),
        (lambda text: text.replace('"format": 3', '"format": 0'), "must be a run's configuration of format 3"),
        (lambda text: text.replace('"unit"', '"unti"'), "describes its figures in a way that is not known here"),
        (lambda text: text.replace('"seed"', '"sead"').replace('"lr":', '"rl":'), "config.json lacks seed, lr"),
    ],
)
def test_a_damaged_file_is_named_with_its_damage(damage, message, tmp_path):
    path = written(tmp_path, {})
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=message):
        Config.read(path)
