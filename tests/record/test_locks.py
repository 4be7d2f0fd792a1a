"""One process writes; who waits, and who cannot lock, is told by whom and why."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.record import locks
from zbench.record.locks import DirectoryLock
from zbench.record.store import RunDirectory
from zbench.record.tags import save_tag


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("an older and longer name\n" * 20)
    first = DirectoryLock(tmp_path)
    assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
    with pytest.raises(UsageError, match=f"is being written by process {os.getpid()} on "):
        DirectoryLock(tmp_path)
    first.release()
    DirectoryLock(tmp_path).release()


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to, lambda lock, _: os.mkfifo(lock)])
def test_no_lock_is_taken_through_a_link_or_pipe(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    (tmp_path / "precious").write_text("text")
    make(tmp_path / ".lock", tmp_path / "precious")
    with pytest.raises(UsageError, match=r"\.lock is a link, a pipe or a socket"):
        DirectoryLock(tmp_path)
    assert (tmp_path / "precious").read_text() == "text"


def test_a_lock_message_is_masked(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    (tmp_path / ".lock").write_text("process 1 of postgresql://me:hunter2@host/db\n" * 20)
    with pytest.raises(UsageError, match=r"by process 1 of postgresql://me:\*+@host") as refusal:
        DirectoryLock(tmp_path)
    assert "hunter2" not in str(refusal.value)
    assert len(str(refusal.value)) < 500
    first.release()


def test_a_lock_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DirectoryLock(tmp_path).release()
    finally:
        os.umask(before)
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_file_system_without_locks_is_named_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(fd: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(locks.fcntl, "flock", refused)
    for write in (
        lambda: RunDirectory.create(tmp_path / "results", "s", spec={}, environment={}),
        lambda: save_tag(tmp_path, "a", "run"),
    ):
        with pytest.raises(UsageError, match=r"its file system, \w+ at /.*, has no locks \(flock: .*Lustre"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"], "of the tags"
