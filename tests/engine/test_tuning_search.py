"""A search with real runs: what it makes, what it never looks at, and that nothing interrupts it for good."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from isda.lab.engine.tuning.method_search import run_search
from isda.lab.engine.tuning.records import find_searches, read_search
from isda.lab.engine.tuning.request import SearchOptions, final_runs, make_candidates
from optuna import load_study
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from isda.lab.data import DataSet
from isda.lab.engine import find_runs
from isda.lab.engine.comparison import Planner, run_planned
from isda.lab.engine.executors import RunsFailed, Watcher
from isda.lab.engine.run_records import run_folders
from isda.lab.tasks.classification.task import Classification
from isda.lab.tasks.semi_supervised.settings import SemiSettings
from isda.lab.tasks.semi_supervised.task import SemiSupervisedClassification
from isda.lab.train import Settings
from parabola import Here, Parabola, ParabolaSettings, begun, candidates, tuned
from small_runs import SMALL, digits

SCRIPT = Path(__file__).with_name("killed_search.py")


def points(search, method=0, name="x"):
    return [trial.point[name] for trial in search.methods[method].trials]


def record(folder):
    return json.loads((folder / "tune.json").read_text())


# -- what it does ------------------------------------------------------------------------------------------------------


def test_the_published_grid_is_tried_widened_and_chosen_from(tmp_path):
    found = tuned(tmp_path, words=["x=0.5,1,2"])
    assert points(found) == [0.5, 1, 2, 4]
    assert found.methods[0].chosen == {"x": 2.0}
    assert found.methods[0].chosen_method == "parabola:x=2"
    assert found.methods[0].inside
    assert read_search(tmp_path).methods == found.methods
    assert points(tuned(tmp_path / "published")) == [1, 2, 4]


def test_every_trial_is_an_ordinary_run_judged_by_held_out_data(tmp_path):
    tuned(tmp_path, seeds=(100, 101))
    runs = find_runs([tmp_path / "search"])
    assert len(runs) == 6
    assert {run.config.evaluated_on for run in runs} == {"held-out"}
    assert {run.seed for run in runs} == {100, 101}
    assert not any("test" in line for line in begun(tmp_path))


def test_the_figure_is_the_mean_over_seeds_and_another_can_be_chosen_by(tmp_path):
    found = tuned(tmp_path, seeds=(100, 300))
    assert found.methods[0].trials[0].value == pytest.approx((1 - 3) ** 2 + 2**2 + 0.2)
    other = tuned(tmp_path / "other", by="other", widen=1)
    assert points(other)[-1] == 8.0
    assert other.methods[0].chosen == {"x": 8.0}
    assert other.methods[0].notes == ("x=8 is the largest value tried",)
    with pytest.raises(ValueError, match="by must be one of figure, other, got 'eror'"):
        tuned(tmp_path / "none", by="eror")


def test_methods_get_as_many_trials_each_whatever_their_grids(tmp_path):
    found = tuned(tmp_path, ("parabola", "worse", "plain"), ["parabola:x=0.25,0.5", "worse:x=0.5,1,2,4,8"])
    assert points(found, 0) == [0.25, 0.5, 1, 2, 4]
    assert len(found.methods[0].trials) == len(found.methods[1].trials) == 5
    assert found.methods[2].trials == ()
    assert found.methods[2].chosen_method == "plain"
    assert [len(one.trials) for one in tuned(tmp_path / "n", ("parabola", "worse"), trials=6).methods] == [6, 6]


def test_the_shorter_search_is_refined_until_it_has_as_many_trials(tmp_path):
    found = tuned(tmp_path, ("parabola", "worse"), ["parabola:x=2,4", "worse:x=1,2,3,4,5"])
    first, second = found.methods
    assert len(first.trials) == len(second.trials) == 5
    assert [trial.why for trial in first.trials] == ["grid", "grid", "widened x", "refined x", "refined x"]
    assert first.chosen == {"x": 2.83}


def test_settings_of_the_run_are_searched_beside_options(tmp_path):
    found = tuned(tmp_path, words=["x=1,2,4", "y=0.5,1,2"], widen=0)
    assert len(found.methods[0].trials) == 9
    assert found.methods[0].chosen == {"x": 2.0, "y": 0.5}
    assert found.methods[0].chosen_method == "parabola:x=2,y=0.5"
    assert find_runs([tmp_path / "search" / "parabola-x=2-y=0.5"])[0].stored["y"] == 0.5
    assert found.methods[0].notes == ("y=0.5 is the smallest value tried",)


def test_words_are_searched_too(tmp_path):
    found = tuned(tmp_path, words=["word=bad,plain"])
    assert found.methods[0].chosen == {"word": "plain"}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_search_ranges(sampler, tmp_path):
    found = tuned(tmp_path, words=["x=0.1..8"], sampler=sampler, trials=12)
    assert len(found.methods[0].trials) == 12
    again = tuned(tmp_path / "again", words=["x=0.1..8"], sampler=sampler, trials=12)
    assert points(again) == points(found)


def test_a_run_that_diverges_counts_as_worst_and_is_said(tmp_path):
    found = tuned(tmp_path, words=["z=2,20,41"], by="other")
    assert points(found, name="z") == [2, 20, 41]
    lost = found.methods[0].trials[2]
    assert "the loss became infinite" in lost.problem
    assert lost.value is None
    assert found.methods[0].chosen == {"z": 20}
    before = begun(tmp_path)
    assert tuned(tmp_path, words=["z=2,20,41"], by="other") == found
    assert begun(tmp_path) == before


def test_a_value_beyond_the_limits_is_a_limit_when_widening_and_a_mistake_when_asked_for(tmp_path):
    found = tuned(tmp_path, words=["x=2,4"], by="other")
    assert points(found) == [2, 4, 8]
    assert found.methods[0].notes == ("x=8 is the largest value tried, and the limit: x must lie in 0..8, got 16.0",)
    with pytest.raises(ValueError, match=r"x must lie in 0\.\.8, got 9"):
        tuned(tmp_path / "asked", words=["x=1,9"])
    assert begun(tmp_path / "asked") == []


def test_a_failure_that_is_no_divergence_ends_the_search_and_the_next_goes_on(tmp_path):
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "parabola-x=2").write_text("in the way")
    with pytest.raises(RunsFailed, match="1 of 3 runs failed"):
        tuned(tmp_path)
    (tmp_path / "search" / "parabola-x=2").unlink()
    assert tuned(tmp_path).methods[0].chosen == {"x": 2.0}
    assert len(begun(tmp_path)) == 3


# -- the store ---------------------------------------------------------------------------------------------------------


def test_optuna_reads_the_store(tmp_path):
    tuned(tmp_path, words=["z=2,20,41"], by="other")
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "optuna.journal")))
    (name,) = [study.study_name for study in storage.get_all_studies()]
    study = load_study(study_name=name, storage=storage)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2 + [TrialState.FAIL]
    assert study.best_params == {"z": 20}


def test_a_line_that_a_kill_has_cut_is_dropped_and_a_damaged_store_is_named(tmp_path):
    found = tuned(tmp_path)
    store = tmp_path / "optuna.journal"
    whole = store.read_bytes()
    store.write_bytes(whole[:-30])
    assert tuned(tmp_path).methods == found.methods
    assert len(begun(tmp_path)) == 3
    store.write_bytes(whole[:50] + b"\xff" + whole[51:])
    with pytest.raises(ValueError, match=r"optuna\.journal is damaged.*remove it and run the same command to resume"):
        tuned(tmp_path)
    store.unlink()
    assert tuned(tmp_path).methods == found.methods
    assert len(begun(tmp_path)) == 3


def test_a_store_and_runs_that_contradict_each_other_are_not_believed(tmp_path):
    tuned(tmp_path)
    store = tmp_path / "optuna.journal"
    store.write_text(store.read_text().replace('"100":8.1', '"100":0.1'))
    with pytest.raises(ValueError, match=r"has 0\.1 for .*parabola-x=1/seed-100, whose result differs"):
        tuned(tmp_path)


def test_another_search_in_the_same_folder_shares_its_runs(tmp_path):
    tuned(tmp_path)
    assert points(tuned(tmp_path, words=["x=1,2,8"])) == [1, 2, 8]
    assert [line.split("/")[0] for line in begun(tmp_path)] == [f"parabola-x={x}" for x in (1, 2, 4, 8)]


# -- interruptions -----------------------------------------------------------------------------------------------------


def kill(folder, kills, seed):
    done = subprocess.run([sys.executable, SCRIPT, folder, str(kills), str(seed)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def check_kills(folder, kills, seed):
    assert kill(folder / "whole", 0, 0) == 0
    # On a fast machine it comes to its end before the last of them.
    assert kill(folder / "killed", kills, seed) >= 3
    whole, killed = record(folder / "whole"), record(folder / "killed")
    assert whole == killed
    results = [
        sorted(path.parent for path in (folder / name).glob("search/**/result.json")) for name in ("whole", "killed")
    ]
    assert len(results[0]) == len(results[1]) == 2 * 6 * 2
    # A run is begun again for each kill that hit one, and never once it is finished.
    assert len(begun(folder / "whole")) == 24
    assert len(begun(folder / "killed")) <= 24 + kills


@pytest.mark.slow
def test_a_search_killed_at_random_moments_makes_the_same_choice_with_the_same_table(tmp_path):
    check_kills(tmp_path, 25, 1)


def test_a_finished_search_repeats_nothing(tmp_path):
    found = tuned(tmp_path, ("parabola", "worse"), trials=5, seeds=(100, 101))
    before, written = begun(tmp_path), (tmp_path / "tune.json").read_bytes()
    assert tuned(tmp_path, ("parabola", "worse"), trials=5, seeds=(100, 101)).methods == found.methods
    assert begun(tmp_path) == before
    assert (tmp_path / "tune.json").read_bytes() == written


# -- final runs --------------------------------------------------------------------------------------------------------


def finals(folder, methods, words, seeds=(0, 1)):
    found = tuned(folder, methods, words)
    planned = final_runs(candidates(methods, words), found.methods, seeds, folder)
    run_planned(planned, executor=Here())
    return find_runs([folder])


def test_final_runs_are_paired_judged_by_the_test_set_and_compared_with_what_was_chosen(tmp_path):
    runs = finals(tmp_path, ("plain", "parabola"), ["parabola:x=1,2", "y=0.5,1"])
    assert {run.config.evaluated_on for run in runs} == {"test"}
    assert [(run.method, run.seed) for run in runs] == [("parabola", 0), ("parabola", 1), ("plain", 0), ("plain", 1)]
    assert all(run.config.chosen == ("y",) for run in runs)
    assert all(run.stored["of_method"] == ["y"] for run in runs)


def test_the_runs_of_a_search_are_not_among_the_results_of_its_folder(tmp_path):
    finals(tmp_path, ("plain", "parabola"), ["x=1,2"])
    assert {folder.relative_to(tmp_path).parts[0] for folder in run_folders(tmp_path)} == {"final"}
    assert len(list(run_folders(tmp_path / "search"))) == 3
    assert [one.folder for one in find_searches([tmp_path, tmp_path])] == [tmp_path]


# -- what cannot be searched -------------------------------------------------------------------------------------------


def test_a_search_is_never_judged_by_the_test_set(tmp_path):
    class Astray(Parabola):
        def held_out(self, settings, data):
            return super().held_out(settings, data)._replace(choosing=settings)

    planner = Planner(task_of=lambda method: Astray())
    with pytest.raises(ValueError, match="must not be chosen on the test set, as those of method parabola would be"):
        make_candidates(ParabolaSettings(), ["parabola"], [], SearchOptions(), planner)


LARGE = [f"{name}={','.join(map(str, range(30)))}" for name in ("z", "y", "lr")]


@pytest.mark.parametrize(
    ("words", "how", "sentence"),
    [
        ([], {"methods": ("plain",)}, "nothing to choose by default for plain; add --search"),
        (["lr=0.1,0.2"], {}, "parabola:lr=0.1 and parabola:lr=0.2 are the same run: nothing to choose"),
        (["x=1..2"], {}, "a grid needs values, got a range of x"),
        (["judged_by=test,held-out"], {}, "searched setting must be one of"),
        ([], {"methods": ("parabola", "parabola")}, "methods must be given, each once"),
        ([], {"methods": ("parabola:x=2",)}, "nothing to choose by default"),
        ([], {"sampler": "gird"}, "did you mean 'grid'"),
        ([], {"trials": 0}, "trials must be from 1 to 10000, got 0"),
        (LARGE, {}, "at most 10000 points, got 27000"),
        ([], {"widen": -1}, "widen must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_made(words, how, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        tuned(tmp_path, words=words, **how)
    assert list(tmp_path.iterdir()) == []


# -- the test set ------------------------------------------------------------------------------------------------------


class Unseen(DataSet):
    """A data set whose test images nobody may look at, not even to count them."""

    @classmethod
    def of(cls, data):
        made = object.__new__(cls)
        hidden = {"x_test", "y_test"}
        made.__dict__.update({k: v for k, v in data.__dict__.items() if k not in hidden} | {"digest": data.digest})
        return made

    def __getattr__(self, name):
        assert name not in ("x_test", "y_test"), "a search has looked at the test set"
        raise AttributeError(name)


LOOKED_FOR = dict(SMALL) | {"epochs": 1}


@pytest.mark.parametrize(
    ("task", "settings", "method"),
    [
        (Classification, Settings(**LOOKED_FOR), "isda"),
        (SemiSupervisedClassification, SemiSettings(**LOOKED_FOR, unlabelled=100), "pi-model+isda"),
    ],
)
def test_a_search_does_not_touch_the_test_set(task, settings, method, tmp_path, monkeypatch):
    class Guarded(task):
        def load(self, data, root=None):
            return Unseen.of(digits())

        def held_out(self, settings, data):
            held = super().held_out(settings, data)
            return held._replace(final=held.choosing)  # the final runs do look, when they are planned

    planner = Planner(task_of=lambda _: Guarded(), device="cpu")
    found = make_candidates(settings, [method], ["lambda_0=0.5,1"], SearchOptions(widen=0), planner)
    done = run_search(found, tmp_path, Watcher(), Here())
    assert len(done.methods[0].trials) == 2
    with pytest.raises(AssertionError, match="looked at the test set"):
        Unseen.of(digits()).y_test.sum()


def digits_search(folder, labels, **how):
    """A search on digits with these labels of the test images."""
    np.savez(
        folder / "digits.npz",
        x_train=digits().x_train[:, 0].numpy(),
        y_train=digits().y_train.numpy(),
        x_test=digits().x_test[:, 0].numpy(),
        y_test=labels,
    )
    planner = Planner(task_of=lambda _: Classification(), device="cpu")
    settings = Settings(**SMALL, data=str(folder / "digits.npz"))
    found = make_candidates(settings, ["isda"], ["lambda_0=0.5,4,32"], SearchOptions(**how), planner)
    return run_search(found, folder, Watcher(), Here())


def test_a_test_set_that_would_lead_astray_is_ignored(tmp_path):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir(), wrong.mkdir()
    labels = digits().y_test.numpy()
    found = [digits_search(right, labels, widen=0), digits_search(wrong, (labels + 1) % 10, widen=0)]
    assert found[0].methods == found[1].methods
    assert {run.config.evaluated_on for run in find_runs([wrong / "search"])} == {"held-out"}
