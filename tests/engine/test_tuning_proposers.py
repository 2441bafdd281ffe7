"""What a search tries next: grids that widen, stop and refine, and samplers that only the seed decides."""

import math

import pytest

from isda.lab.engine import TrainingSettings
from isda.lab.engine.tuning.proposers import GridProposer, OptunaProposer, is_geometric, step_beyond
from isda.lab.engine.tuning.search_space import SearchedSetting, Trial, best_trial, parse_searches

CIFAR = (0.1, 0.25, 0.5, 0.75, 1.0)


def setting(*values, name="x", **more):
    return SearchedSetting(name=name, of_method=True, values=values, **more)


def run(proposer, figure, level=0, most=100):
    """The trials of a whole search, whose figure a function of the point says; None diverges."""
    trials = []
    while proposals := proposer.next(trials, level):
        for proposal in proposals:
            value = figure(**proposal.point)
            told = {"values": {"0": value}} if value is not None else {"problem": "diverged"}
            trials.append(Trial(number=len(trials), point=proposal.point, why=proposal.why, **told))
        assert len(trials) < most
    return trials


def grid(*searched, widen=3, budget=None, point_problem=lambda point: "", lower=True):
    return GridProposer(searched, lower, budget, 0, widen, point_problem)


def tried(trials, name="x"):
    return [trial.point[name] for trial in trials]


def test_a_grid_whose_best_is_inside_stays_as_it_is():
    proposer = grid(setting(*CIFAR))
    trials = run(proposer, lambda x: (x - 0.5) ** 2)
    assert tried(trials) == list(CIFAR)
    assert proposer.notes(trials) == []


@pytest.mark.parametrize(
    ("values", "optimum", "further"),
    [
        ((0.5, 1.0, 2.0), 3.9, [4.0, 8.0]),
        ((0.5, 1.0, 2.0), 0.26, [0.25, 0.125]),
        ((0.1, 0.2, 0.3), 0.4, [0.4, 0.5]),
        (CIFAR, 1.8, [1.78, 3.17]),
        ((1.0, 2.5, 5.0, 7.5, 10.0), 17.0, [17.8, 31.7]),
    ],
)
def test_a_grid_widens_by_its_own_step_and_stops_when_the_best_is_inside(values, optimum, further):
    proposer = grid(setting(*values))
    trials = run(proposer, lambda x: abs(math.log(x / optimum)))
    assert tried(trials) == [*values, *further]
    assert [trial.why for trial in trials[-2:]] == ["widened x"] * 2
    assert proposer.notes(trials) == []


def test_it_widens_so_often_and_no_more_and_says_that_the_best_is_at_the_edge():
    proposer = grid(setting(1.0, 2.0), widen=2)
    trials = run(proposer, lambda x: -x)
    assert tried(trials) == [1, 2, 4, 8]
    assert proposer.notes(trials) == ["x=8 is the largest value tried"]
    assert tried(run(grid(setting(1.0, 2.0), widen=0), lambda x: -x)) == [1, 2]


def test_a_value_that_does_not_resolve_is_a_limit_that_is_said():
    proposer = grid(setting(0.5, 1.0), point_problem=lambda point: "x must lie in 0..1" if point["x"] > 1 else "")
    trials = run(proposer, lambda x: -x)
    assert tried(trials) == [0.5, 1]
    assert proposer.notes(trials) == ["x=1 is the largest value tried, and the limit: x must lie in 0..1"]


def test_what_diverges_is_worse_than_anything_and_ends_the_widening():
    proposer = grid(setting(1.0, 2.0))
    trials = run(proposer, lambda x: None if x > 4 else -x)
    assert tried(trials) == [1, 2, 4, 8]
    assert best_trial(trials, True).point == {"x": 4}
    assert proposer.notes(trials) == []
    assert run(grid(setting(1.0, 2.0)), lambda x: None)[-1].point == {"x": 2.0}


def test_higher_may_be_better():
    trials = run(grid(setting(1.0, 2.0), lower=False), lambda x: -abs(x - 4))
    assert tried(trials) == [1, 2, 4, 8]
    assert best_trial(trials, False).point == {"x": 4.0}


def test_two_settings_are_tried_in_every_combination_and_widened_one_at_a_time():
    proposer = grid(setting(1.0, 2.0), setting(0.1, 0.2, 0.3, name="y"))
    trials = run(proposer, lambda x, y: (x - 4) ** 2 + (y - 0.2) ** 2)
    assert len(trials) == 2 * 3 + 2
    assert [trial.point for trial in trials[6:]] == [{"x": 4.0, "y": 0.2}, {"x": 8.0, "y": 0.2}]


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 7, 9])
@pytest.mark.parametrize("optimum", [0.001, 0.3, 50.0])
def test_a_budget_is_kept_exactly(budget, optimum):
    trials = run(grid(setting(*CIFAR), budget=budget), lambda x: abs(math.log(x / optimum)))
    assert len(trials) == len({trial.point["x"] for trial in trials}) == budget


def test_a_small_budget_keeps_the_ends_of_a_grid():
    assert tried(run(grid(setting(*CIFAR), budget=3), lambda x: x)) == [0.1, 0.5, 1.0]


def test_of_many_settings_a_small_budget_takes_a_random_choice_that_is_always_the_same():
    searched = setting(*CIFAR), setting(0.5, 1.0, 2.0, name="y")
    first = run(grid(*searched, budget=6), lambda x, y: x * y)
    assert [trial.point for trial in first] == [trial.point for trial in run(grid(*searched, budget=6), lambda x, y: 0)]
    assert len({tuple(trial.point.values()) for trial in first}) == 6


def test_what_is_left_of_a_budget_goes_between_the_best_and_its_better_neighbour():
    trials = run(grid(setting(1.0, 2.0, 4.0), budget=6), lambda x: abs(math.log(x / 2.5)))
    assert tried(trials)[3:] == [2.83, 2.38, 2.6]
    assert {trial.why for trial in trials[3:]} == {"refined x"}


def test_whole_numbers_and_words_are_refined_to_what_there_is():
    whole = SearchedSetting(name="x", of_method=True, values=(2, 3, 8))
    trials = run(grid(whole), lambda x: abs(x - 3), level=50)
    assert tried(trials)[3:] == [5, 4]
    words = run(grid(setting("full", "diagonal")), lambda x: len(x), level=50)
    assert tried(words) == ["full", "diagonal"]


def test_a_proposal_is_a_function_of_what_was_tried():
    """Cut anywhere and asked again, the search goes the same way."""
    for proposer, figure in (
        (grid(setting(1.0, 2.0), budget=7), lambda x: abs(math.log(x / 3))),
        (sampled("tpe", 8), lambda x: (math.log(x) - 1) ** 2),
        (sampled("random", 8), lambda x: x),
    ):
        trials = run(proposer, figure)
        for cut in range(len(trials)):
            proposals = proposer.next(trials[:cut], 0)
            expected = [trial.point for trial in trials[cut : cut + len(proposals)]]
            assert [proposal.point for proposal in proposals] == expected, cut


def sampled(sampler, budget, seed=0, low=0.01, high=10.0):
    searched = [SearchedSetting(name="x", of_method=True, low=low, high=high)]
    return OptunaProposer(searched, True, budget, seed, learning=sampler == "tpe")


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_draw_from_the_range_with_the_seed_on_a_logarithmic_scale(sampler):
    trials = run(sampled(sampler, 24), lambda x: (math.log(x) - 1) ** 2)
    assert len(trials) == 24
    assert all(0.01 <= x <= 10 for x in tried(trials))
    assert min(tried(trials)) < 0.3
    assert tried(trials) == tried(run(sampled(sampler, 24), lambda x: (math.log(x) - 1) ** 2))
    assert tried(trials) != tried(run(sampled(sampler, 24, seed=1), lambda x: (math.log(x) - 1) ** 2))


def test_tpe_learns_where_random_does_not():
    def figure(x):
        return None if x > 8 else (math.log(x) - 1) ** 2

    def late(sampler):
        return sum(trial.value for trial in run(sampled(sampler, 30), figure)[10:] if trial.value is not None) / 20

    assert late("tpe") < 0.5 * late("random")


def test_samplers_take_whole_numbers_and_words():
    searched = [SearchedSetting(name="n", of_method=False, low=1, high=64), setting("a", "b", name="w")]
    trials = run(OptunaProposer(searched, True, 12, 0, learning=True), lambda n, w: n + (w == "b"))
    assert all(isinstance(trial.point["n"], int) and trial.point["w"] in ("a", "b") for trial in trials)


def test_steps_of_grids():
    assert is_geometric((0.5, 1, 2))
    assert not is_geometric((0, 0.1, 0.2))
    assert step_beyond((0, 0.01, 0.1), 0.1, upper=True) == 1.0
    assert step_beyond((0, 0.01, 0.1), 0, upper=False) is None
    assert step_beyond((0, 0.1), 0, upper=False) == -0.1
    assert step_beyond((16, 32, 64), 64, upper=True, whole=True) == 128
    assert step_beyond((5.0,), 5.0, upper=True) is None


OPTIONS = {"isda": {"lambda_0": float, "rank": int}, "focal": {"gamma": float}, "isda:rank=4": {"lambda_0": float}}


def read(*words, options=OPTIONS, settings=None, reserved=("held_out",)):
    return parse_searches(words, options, settings or TrainingSettings(), reserved)


def test_a_name_belongs_to_the_methods_that_have_it_or_else_to_the_run():
    found = read("lambda_0=1,0.5", "lr=0.1..0.2", "focal:gamma=2")
    assert [one.name for one in found["isda"]] == ["lambda_0", "lr"]
    assert [one.name for one in found["focal"]] == ["lr", "gamma"]
    assert found["isda"][0] == SearchedSetting(name="lambda_0", of_method=True, values=(0.5, 1.0))
    assert found["isda"][1] == SearchedSetting(name="lr", of_method=False, low=0.1, high=0.2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lambda_0"], "must be written NAME=VALUE,VALUE"),
        (["lambda_0="], "must be written NAME=VALUE,VALUE"),
        (["lamda_0=1"], "did you mean 'lambda_0'"),
        (["foca:gamma=1"], "did you mean 'focal'"),
        (["focal:lambda_0=1"], "searched setting must be one of gamma, "),
        (["lambda_0=1,x"], "searched lambda_0 must be a number, got 'x'"),
        (["lambda_0=1,1.0"], "must have different finite numbers"),
        (["lambda_0=1,inf"], "must have different finite numbers"),
        (["lambda_0=2..1"], "must be a range of numbers LOW..HIGH in order"),
        (["lambda_0=1", "lambda_0=2"], "once for method isda"),
        (["rank=4", "seed=1,2"], "searched setting must be one of"),
        (["held_out=1,2"], "searched setting must be one of"),
    ],
)
def test_searches_that_make_no_sense_are_refused(words, sentence):
    with pytest.raises(ValueError, match=sentence.replace("..", r"\.\.")):
        read(*words)


def test_what_is_given_is_not_searched():
    with pytest.raises(ValueError, match="rank must be searched or given, got both for method isda:rank=4"):
        read("rank=1,2", options={"isda:rank=4": {"rank": int}})
    with pytest.raises(ValueError, match="lr must be searched or given, got both"):
        read("lr=1,2", settings=TrainingSettings(lr=0.1))
