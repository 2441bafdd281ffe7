"""Words that a user chooses from."""

import pytest

from isda._utils.choices import check_choice, did_you_mean


def test_a_known_word_passes():
    assert check_choice("bound", "jensen", ["jensen", "tilted"]) == "jensen"


def test_an_unknown_word_is_answered_by_the_choices_and_the_nearest():
    with pytest.raises(ValueError, match=r"bound must be one of jensen, tilted, got 'titled'; did you mean 'tilted'\?"):
        check_choice("bound", "titled", ("jensen", "tilted"))


def test_nothing_is_suggested_where_nothing_is_near():
    assert did_you_mean("zzz", ["jensen"]) == ""
