"""Where the machine refuses a call, as containers do, trials run without it or the message names the call."""

import os
import re
from pathlib import Path

import pytest

from zbench.launch import doctor
from zbench.record import locks
from zbench.record.store import find_runs, load_records

from .driver import REFUSED
from .rounds import Round


def swept(home: Path, refused: str) -> tuple[int, str, Round]:
    """Return how a sweep of one repeat ended, and what it said."""
    sweep = Round(home, points=1, repeats=1, seconds=0.0, timeout="300s")
    command = sweep.start("sweep", sweep.file, "-o", home / "results", variables={REFUSED: refused})
    _, err = command.communicate(timeout=600)
    assert "Traceback" not in err
    assert sweep.left() == []
    return command.returncode, err, sweep


@pytest.mark.parametrize("error", ["EPERM", pytest.param("ENOSYS", marks=pytest.mark.check)])
def test_trials_run_where_pinning_and_process_descriptors_are_refused(tmp_path: Path, error: str) -> None:
    code, err, _ = swept(tmp_path, f"sched_setaffinity:{error},pidfd_open:{error}")
    assert code == 0, err
    assert "ranks are not pinned to cores of their own, so times vary more: sched_setaffinity: " in err
    (run,) = find_runs(tmp_path / "results")
    assert [record.outcome for record in load_records(run)] == ["ok"]
    if len(os.sched_getaffinity(0)) >= 2:
        assert (
            "this rank is not pinned to its cores: sched_setaffinity"
            in next(run.rglob("rank0.log")).read_text()
        )


@pytest.mark.parametrize(
    ("error", "who"), [("EPERM", "rank [01]: "), pytest.param("ENOSYS", "", marks=pytest.mark.check)]
)
def test_a_process_that_cannot_go_on_reports_the_refused_call(tmp_path: Path, error: str, who: str) -> None:
    """A rank is refused its own group, and its keeper that of the rank."""
    code, err, _ = swept(tmp_path, f"setpgid:{error}")
    assert code == 6, err
    (run,) = find_runs(tmp_path / "results")
    (record,) = load_records(run)
    assert record.error is not None
    assert re.match(f"{who}.*at `os[.]setpgid[(]", record.error.message)
    assert "from outside" not in err


def test_a_file_system_without_locks_is_named(tmp_path: Path) -> None:
    code, err, _ = swept(tmp_path, "flock:ENOSYS")
    assert code == 2
    assert "has no locks (flock: Function not implemented)" in err


def test_the_doctor_tries_the_calls_that_a_machine_may_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    checks = {check.name: check for check in [*doctor._threads(), *doctor._surroundings(tmp_path)]}
    assert checks["locks"].status == "ok"
    monkeypatch.setattr(os, "sched_setaffinity", refused)
    monkeypatch.setattr(locks, "_WITHOUT_LOCKS", (1,))
    monkeypatch.setattr(locks.fcntl, "flock", refused)
    checks = {check.name: check for check in [*doctor._threads(), *doctor._surroundings(tmp_path)]}
    assert "cannot be pinned to them: sched_setaffinity: Operation not permitted" in checks["affinity"].text
    assert checks["locks"].status == "fail"
    assert "flock" in checks["locks"].text
