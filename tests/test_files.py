"""Files that are replaced as a whole."""

import os
from concurrent.futures import ThreadPoolExecutor

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


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path):
    """As a device does: whoever writes a table to /dev/null must not replace it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(path.read_text)
        write_text(path, "through")
        assert reading.result(timeout=10) == "through"
    assert path.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "link").symlink_to("a.txt")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.txt").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "link"]


def test_error_names_the_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/a\.txt could not be written"):
        write_text(tmp_path / "file" / "a.txt", "text")
