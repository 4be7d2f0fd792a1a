"""One writer at a time; the kernel lets the next one in."""

import os
import socket
import stat
from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.record.lock import DirectoryLock


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    with pytest.raises(UsageError, match=f"is being written by process {os.getpid()} on "):
        DirectoryLock(tmp_path)
    first.release()
    first.release()
    DirectoryLock(tmp_path).release()


def test_a_holder_that_left_no_name_is_another_process(tmp_path: Path) -> None:
    held = DirectoryLock(tmp_path)
    (tmp_path / ".lock").write_bytes(b"")
    with pytest.raises(UsageError, match="is being written by another process; wait"):
        DirectoryLock(tmp_path)
    held.release()


def test_the_lock_file_holds_the_name_of_its_holder_and_nothing_older(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("an older and longer name\n" * 20)
    DirectoryLock(tmp_path).release()
    assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_everybody_may_read_who_writes(tmp_path: Path) -> None:
    before = os.umask(0)
    DirectoryLock(tmp_path).release()
    os.umask(before)
    assert stat.S_IMODE((tmp_path / ".lock").stat().st_mode) == 0o644
    assert (tmp_path / ".lock").read_text().count("\n") == 1
