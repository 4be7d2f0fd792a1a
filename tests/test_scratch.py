"""A temporary folder goes with its owner: a later command removes those of processes that were killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from zbench import scratch
from zbench.cli.main import main
from zbench.errors import UsageError
from zbench.scratch import remove_abandoned, scratch_folder

OWNER = "from zbench.scratch import *; import time; print(scratch_folder(), flush=True); time.sleep(1000)"


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temporary folder of the test's processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_command_removes_the_folder_of_a_killed_owner_alone(shared: Path) -> None:
    folder = scratch_folder()
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        orphan = Path(owner.stdout.readline().strip())
        (orphan / "file").touch()
        remove_abandoned()
        assert orphan.parent == shared
        assert (orphan / "file").exists()
        owner.send_signal(signal.SIGKILL)
    with pytest.raises(SystemExit):
        main(["schema"])
    assert list(shared.iterdir()) == [folder]


def abandoned(shared: Path) -> Path:
    """Make a folder that names this process's number, but another start."""
    folder = shared / scratch_folder().name.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1")
    folder.mkdir()
    return folder


def test_a_folder_of_another_machine_or_container_stays(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = abandoned(shared)
    older = shared / "zbench-0123abcd"
    older.mkdir()  # an older zbench's has no owner
    with monkeypatch.context() as patch:
        patch.setattr(scratch.socket, "gethostname", lambda: "elsewhere")
        remove_abandoned()
        assert folder.exists()
    remove_abandoned()
    assert not folder.exists()
    assert older.exists()


def test_the_folder_of_a_models_state_is_named_checked_and_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZBENCH_SCRATCH", raising=False)
    said: list[str] = []
    with pytest.raises(UsageError, match="--scratch: expected a folder that can be written to"):
        scratch.use_state_folder(tmp_path / "none", said.append)
    scratch.use_state_folder(tmp_path, said.append)
    assert (os.environ["ZBENCH_SCRATCH"], scratch.state_folder(), said) == (str(tmp_path), str(tmp_path), [])
    with pytest.raises(
        UsageError, match=r"takes 1048576 TiB in .* which has .* free; name another folder by --scratch"
    ):
        scratch.require_room(1 << 60)


def test_a_folder_in_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no file system in memory here")
    monkeypatch.delenv("ZBENCH_SCRATCH", raising=False)
    said: list[str] = []
    scratch.use_state_folder(Path("/dev/shm"), said.append)
    assert said == ["--scratch: /dev/shm is a tmpfs, so its files take memory; name a folder on a disk"]
