"""Files that are replaced as a whole."""

import os

import pytest

from isda.files import replacing, write_text


def test_text_replaces_what_was_there(tmp_path):
    write_text(tmp_path / "new" / "a.txt", "one")
    write_text(tmp_path / "new" / "a.txt", "two")
    assert (tmp_path / "new" / "a.txt").read_text() == "two"
    assert os.listdir(tmp_path / "new") == ["a.txt"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_error_leaves_the_old_content_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted():
        with replacing(path) as unfinished:
            unfinished.write_text("half")
            raise error

    with pytest.raises((OSError, KeyboardInterrupt)):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_error_names_the_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/a\.txt could not be written"):
        write_text(tmp_path / "file" / "a.txt", "text")
