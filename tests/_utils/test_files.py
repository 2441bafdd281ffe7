"""Files that are replaced as a whole, and files that may be opened."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import pytest

from isda import ISDAClassifier
from isda._utils.files import atomic_write, write_text
from isda.estimator.embedding_files import read_csv_rows, read_npz_rows
from isda.lab.data import ZCAWhitening
from isda.lab.data.coco import read_part
from isda.lab.data.image_files import read_image
from isda.lab.data.npz import npz_contents, read_npz
from isda.lab.engine.digests import file_digest, read_json_object
from isda.lab.engine.tuning.records import JOURNAL_FILE, TrialJournal
from isda.lab.networks.weight_files import read_weights


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
        with atomic_write(path) as unfinished:
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


def test_a_link_leads_to_a_file_that_is_replaced_beside_itself(tmp_path, monkeypatch):
    """Nothing is written to a name that somebody can foresee in a folder that everybody may write to."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    (own / "a.txt").write_text("old")
    (own / "victim.txt").write_text("precious")
    (tmp_path / "link").symlink_to(own / "a.txt")
    (shared / f".link.{os.getpid()}.unfinished").symlink_to(own / "victim.txt")
    with atomic_write(tmp_path / "link") as unfinished:
        assert unfinished.parent == own
        assert stat.S_ISREG(unfinished.lstat().st_mode)
        unfinished.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (own / "a.txt").read_text() == "new"
    assert (own / "victim.txt").read_text() == "precious"


def test_a_link_to_a_file_that_is_not_there_yet_makes_it(tmp_path):
    (tmp_path / "link").symlink_to("new.txt")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new.txt").read_text() == "text"


@pytest.mark.parametrize("through_link", [False, True])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, mode, through_link):
    path = link = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(mode)
    if through_link:
        link = tmp_path / "link"
        link.symlink_to(path)
    with atomic_write(link) as unfinished:
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600
        # As a library does that writes a file of its own and renames it.
        (tmp_path / "other").write_text("new")
        os.replace(tmp_path / "other", unfinished)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path):
    (tmp_path / "plain").touch()
    write_text(tmp_path / "a.txt", "text")
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_stream_of_the_process_is_written_into_where_it_is_a_file(tmp_path):
    """``--json /dev/stdout > file``: what is printed later must come into the same file."""
    program = "import sys; from pathlib import Path; from isda._utils.files import write_text\n"
    program += "write_text(Path('/dev/stdout'), 'json\\n'); sys.stdout.write('after\\n')"
    with (tmp_path / "out.txt").open("a") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out.txt").read_text() == "json\nafter\n"


WRITING = """
import sys, time
from pathlib import Path
from isda._utils.files import atomic_write
with atomic_write(Path(sys.argv[1])) as first, atomic_write(Path(sys.argv[2])) as second:
    first.write_text("half")
    second.write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_sigterm_leaves_the_old_content_and_nothing_else(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    words = [sys.executable, "-c", WRITING, tmp_path / "a.txt", tmp_path / "b.txt"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(os.listdir(tmp_path)) == 3
        process.terminate()
        assert process.wait(timeout=60) == -signal.SIGTERM
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_handler_of_sigterm_stays_as_it_was(tmp_path):
    with atomic_write(tmp_path / "a.txt") as unfinished:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        unfinished.write_text("text")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with atomic_write(tmp_path / "a.txt") as unfinished:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "read",
    [
        *(read_image, read_npz, npz_contents, read_weights, file_digest, read_json_object),
        *(ISDAClassifier.load, ZCAWhitening.read, read_csv_rows, read_npz_rows),
        lambda path: read_part(path, []),
        lambda path: TrialJournal(path.parent),
    ],
)
def test_no_reader_waits_for_a_named_pipe(tmp_path, read):
    """Whoever reads a folder of others must not hang at what lies in it."""
    path = tmp_path / JOURNAL_FILE
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, path)
        waits = not wait([reading], timeout=20).done
        while not wait([reading], timeout=0.1).done:
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # the reader sees an empty file
        assert not waits
        with pytest.raises((ValueError, FileNotFoundError), match=r"regular file|not a file"):
            reading.result()
