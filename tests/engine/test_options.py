"""How methods are written: every option is a typed field of a dataclass, and one way of writing stands for all."""

from dataclasses import dataclass, field

import pytest

from isda.lab.engine.options import canonical_method, option_types, parse_options, split_method


@dataclass(frozen=True, kw_only=True)
class Options:
    strength: float = 0.5
    decay: float | None = None
    rank: int | None = None
    exact: bool = False
    model: str = "full"


@dataclass
class More:
    weight: float = 1.0


@dataclass
class Nothing:
    pass


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("isda", ("isda", "")),
        ("isda:", ("isda", "")),
        ("vat+isda:eta_1=2,decay=0.9", ("vat+isda", "eta_1=2,decay=0.9")),
        ("mine.losses.Focal:path=a:b", ("mine.losses.Focal", "path=a:b")),
    ],
)
def test_options_follow_the_first_colon(text, parts):
    assert split_method(text) == parts


def test_types_come_from_the_dataclass():
    assert option_types(Options) == {"strength": float, "decay": float, "rank": int, "exact": bool, "model": str}
    assert option_types(Nothing) == {}


def test_types_written_as_text_are_the_same():
    """As they are in modules with `from __future__ import annotations`."""

    @dataclass
    class Written:
        decay: "float | None" = None
        rank: "int" = 2

    assert option_types(Written) == {"decay": float, "rank": int}


def test_only_plain_types_can_be_options():
    @dataclass
    class Listed:
        sizes: list[int] = field(default_factory=list)

    with pytest.raises(TypeError, match=r"an option of a method must be an int, float, bool or str, got list"):
        option_types(Listed)
    with pytest.raises(TypeError, match="the options of a method must be a dataclass, got <class 'int'>"):
        option_types(int)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        ("strength=2", {"strength": 2.0}),
        ("strength=1e-3,decay=0.99", {"strength": 0.001, "decay": 0.99}),
        ("rank=4,model=low_rank", {"rank": 4, "model": "low_rank"}),
        ("exact=true", {"exact": True}),
        ("exact=False,strength=-1", {"exact": False, "strength": -1.0}),
        ("weight=3,decay=0.5,", {"weight": 3.0, "decay": 0.5}),
        ("model=a=b", {"model": "a=b"}),
    ],
)
def test_options_are_read_with_their_types(words, expected):
    found = parse_options("mine", words, Options, More)
    assert found == expected
    assert list(map(type, found.values())) == list(map(type, expected.values()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("strength", "method options are written key=value, got 'strength' in mine:strength"),
        ("strenght=1", r"option of method mine must be one of .*, got 'strenght'; did you mean 'strength'\?"),
        ("=1", "option of method mine must be one of strength, decay, rank, exact, model, got ''"),
        ("strength=strong", "option strength of method mine must be a number, got 'strong'"),
        ("decay=none", "option decay of method mine must be a number, got 'none'"),
        ("rank=1.5", "option rank of method mine must be an integer, got '1.5'"),
        ("exact=1", "option exact of method mine must be true or false, got '1'"),
        ("rank=1,rank=1", "option rank of method mine must be given once, got it twice in mine:rank=1,rank=1"),
        ("weight=1", "option of method mine must be one of .*, got 'weight'"),
    ],
)
def test_what_cannot_be_read_is_named(words, message):
    with pytest.raises(ValueError, match=message):
        parse_options("mine", words, Options)


@pytest.mark.parametrize("declared", [(), (Nothing,), (Nothing, Nothing)])
def test_a_method_without_options_says_so(declared):
    with pytest.raises(ValueError, match="method plain has no options, got 'rank'"):
        parse_options("plain", "rank=1", *declared)


def test_numbers_written_in_several_ways_are_one_and_words_stay():
    ways = ["mine:strength=1,decay=0.9", "mine:strength=1.0,decay=9e-1", "mine:strength=1.,decay=.90,"]
    assert {canonical_method(text) for text in ways} == {ways[0]}
    assert canonical_method("mine:model=a.b.Model,exact=true") == "mine:model=a.b.Model,exact=true"
    assert canonical_method("mine:strength=1") != canonical_method("mine:strength=10")
