"""`isda methods`."""

import json

import pytest

from isda.lab.engine import find_task
from isda.lab.methods.registry import METHODS
from isda.lab.train import Settings, resolve
from small_runs import digits, isda


@pytest.fixture(scope="module")
def records():
    out, _, code = isda("methods", "--json", "-")
    assert code is None
    return json.loads(out)


def test_every_method_of_every_task_is_listed(records):
    for task in {record["task"] for record in records}:
        names = [record["name"] for record in records if record["task"] == task]
        assert sorted(names) == sorted(find_task(task).methods())
    out = isda("methods")[0]
    assert all(f" {name.removesuffix('+isda')} " in out for name in METHODS)


@pytest.mark.parametrize("method", ["isda", "isda-tilted", "focal+isda", "disturb-label", "mixup", "large-margin"])
def test_defaults_are_those_of_a_run(records, method):
    (record,) = [one for one in records if one["name"] == method and one["task"] == "classification"]
    config = resolve(Settings(method=method), digits())
    assert config.method_options.items() <= record["options"].items()
    # What a run does not store has the default of the method's dataclass.
    defaults = vars(METHODS[method].Options())
    assert record["options"] == defaults | config.method_options


def test_strengths_are_those_of_the_recipes(records):
    strengths = {record["task"]: record["lambda_0"] for record in records if record["name"].endswith("isda")}
    assert strengths["classification"]["small images"] == 0.5
    assert strengths["classification"]["ImageNet, ResNets and ResNeXts"] == 7.5
    assert strengths["segmentation"] == {"segmentation": 7.5}
    assert not any(record["lambda_0"] for record in records if record["name"] == "cross-entropy")


def test_a_method_is_explained_with_all_of_its_options():
    out, _, code = isda("methods", "focal+isda")
    assert code is None
    assert "isda train --method focal+isda" in out
    assert all(name in out for name in ("gamma", "alpha", "lambda_0", "Strength at the end of training"))


def test_a_misspelt_method_is_refused_with_the_nearest():
    assert isda("methods", "isad")[2].endswith("got 'isad'; did you mean 'isda'?")
