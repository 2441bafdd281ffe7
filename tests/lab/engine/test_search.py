"""`isda tune`: what is searched, on which data, what is chosen, and that nothing is trained twice."""

from __future__ import annotations

import pytest

from isda.lab.engine.search import SearchedSetting, final_runs, find_searches, parse_searches, read_search
from parabola import ParabolaSettings, begun, candidates, tuned


def test_the_best_point_on_held_out_data_is_chosen(tmp_path):
    folder = tmp_path / "search"
    record = tuned(folder, words=["x=1,2,4"])
    (method,) = record.methods
    assert record.finished
    assert method.chosen == {"x": 2.0}
    assert method.chosen_method == "parabola:x=2"
    assert method.inside
    assert all(line.endswith("held-out") for line in begun(folder))
    assert read_search(folder).as_json() == record.as_json()
    assert [search.folder for search in find_searches([tmp_path])] == [folder]


def test_the_same_command_repeats_no_run_and_makes_the_same_choice(tmp_path):
    first, before = tuned(tmp_path), begun(tmp_path)
    assert tuned(tmp_path).as_json() == first.as_json()
    assert begun(tmp_path) == before


def test_a_choice_at_the_edge_is_told(tmp_path):
    (method,) = tuned(tmp_path, words=["x=4,6"]).methods
    assert (method.chosen, method.notes) == ({"x": 4.0}, ("x=4 is the smallest value tried",))


def test_a_run_that_diverges_is_worst_and_the_others_decide(tmp_path):
    (method,) = tuned(tmp_path, words=["z=1,40", "x=2,4"]).methods
    assert method.chosen == {"z": 1, "x": 2.0}
    assert sum("infinite or not a number" in trial.problem for trial in method.trials) == 2


def test_trials_are_means_over_seeds_by_another_figure_if_one_is_named(tmp_path):
    (method,) = tuned(tmp_path, words=["x=1,2"], seeds=(100, 101), by="other").methods
    assert method.chosen == {"x": 2.0}
    assert list(method.trials[0].values) == ["100", "101"]


def test_few_trials_are_spread_over_the_grid(tmp_path):
    (method,) = tuned(tmp_path, words=["x=1,2,3,4,5"], trials=3).methods
    assert [trial.point["x"] for trial in method.trials] == [1.0, 3.0, 5.0]


def test_final_runs_are_on_all_data_with_the_choice(tmp_path):
    found = candidates(("parabola", "plain"), ())
    record = tuned(tmp_path, ("parabola", "plain"))
    planned = final_runs(found, record.methods, [0, 1], tmp_path)
    assert [run.config.evaluated_on for run in planned] == ["test"] * 4
    assert [run.config.method_options for run in planned[:2]] == [{"x": 2.0}, {}]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["x"], "search must be written NAME=VALUE,VALUE, got 'x'"),
        (["w=1"], "searched setting must be one of x, z, word,"),
        (["x=1,1"], "searched x must have different values"),
        (["x=1,2", "x=3"], "search must name x once for method parabola"),
        (["y=1,2"], "y must be searched or given, got both"),
        (["x=1,9"], "x must lie in 0..8"),
        (["lr=0.1,0.2"], "are the same run: nothing to choose"),
    ],
)
def test_a_search_that_cannot_work_is_refused(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        candidates(words=words, settings=ParabolaSettings(y=0.5))


def test_an_option_is_searched_where_a_method_has_it():
    found = parse_searches(["focal:gamma=1,2"], {"focal": {"gamma": float}, "isda": {}}, ParabolaSettings(), [])
    assert found == {"focal": (SearchedSetting(name="gamma", of_method=True, values=(1.0, 2.0)),), "isda": ()}
