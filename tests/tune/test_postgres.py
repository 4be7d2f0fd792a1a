"""Several workers, one study, a real PostgreSQL server; one worker is killed in the middle of a trial."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from zbench.record.store import RunDirectory, find_runs, load_records
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.tune.session import SearchTask, Session
from zbench.tune.space import Space
from zbench.tune.storage import Heartbeat, StudyStorageError, relational_storage

from . import postgres
from .fakes import SMALL_AXES, Ear, FakeRunner, small_sweep

pytestmark = pytest.mark.skipif(postgres.BINARIES is None, reason="PostgreSQL's server is not installed")
ROOT = Path(__file__).parents[2]
BUCKETS = 2


def sweep_of_all(**changes: Any) -> SweepSpec:
    """Return the sweep that the workers of this file share: 10 points."""
    sizes = [10_000 * (n + 1) for n in range(BUCKETS)]
    return small_sweep(axes=SMALL_AXES | {"reduce_bucket_size": sizes}, **changes)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pytest.importorskip("psycopg")
    with postgres.server() as found:
        yield found


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Start:
    """Return what starts a worker in a process of its own."""

    def started(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        return started_worker(*arguments, **more)

    return started


def started_worker(
    url: str, home: Path, name: str, *, fingerprint: str = "alike", seconds: float = 0.25
) -> subprocess.Popen[bytes]:
    job = {"url": url, "host": name, "home": str(home / name), "log": str(home / f"{name}.log")}
    job |= {"fingerprint": fingerprint, "seconds": str(seconds), "study": home.name, "buckets": str(BUCKETS)}
    (home / name).mkdir()
    words = [sys.executable, "-m", "tests.tune.lone_worker", json.dumps(job)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE)


def log_of(home: Path) -> list[tuple[str, int, str]]:
    lines = [line for file in home.glob("*.log") for line in file.read_text().splitlines()]
    return [(what, pid, trial_id) for what, pid, trial_id, _ in map(json.loads, lines)]


def wait_for(condition, seconds: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def test_three_workers_run_every_point_once_though_one_is_killed(
    url: str, tmp_path: Path, start: Start
) -> None:
    points = {
        trial_id
        for p in Space(sweep_of_all()).points() or ()
        if (trial_id := Space(sweep_of_all()).trial(p).trial_id)
    }
    workers = [start(url, tmp_path, name) for name in ("a", "b")]
    victim = start(url, tmp_path, "victim", seconds=30.0)
    wait_for(lambda: any(pid == victim.pid for _, pid, _ in log_of(tmp_path)))
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors.decode()
    ended = Counter(trial_id for what, _, trial_id in log_of(tmp_path) if what == "ended")
    lost = {trial_id for what, pid, trial_id in log_of(tmp_path) if pid == victim.pid}
    assert len(lost) == 1, "the victim had one trial under way"
    assert ended == Counter(points), "every point ended exactly once, that of the victim too"
    began = Counter(trial_id for what, _, trial_id in log_of(tmp_path) if what == "began")
    assert began == Counter(points) + Counter(lost), "nothing but the lost trial was begun twice"
    runs = [run for name in ("a", "b") for run in find_runs(tmp_path / name)]
    ran = {r.trial_id for run in runs for r in load_records(run) if r.outcome != "invalid"}
    assert ran == points


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_workers_that_meet_an_empty_database_at_once_all_enter() -> None:
    pytest.importorskip("psycopg")
    with postgres.server() as empty, ThreadPoolExecutor(8) as workers:
        storages = list(workers.map(relational_storage, [empty] * 8))
        assert [storage.get_all_studies() for storage in storages] == [[]] * 8
        for storage in storages:
            storage.engine.dispose()


def test_the_one_who_asks_gets_everybodys_results_by_kind_of_machine(
    url: str, tmp_path: Path, start: Start
) -> None:
    other = start(url, tmp_path, "other", fingerprint="unlike", seconds=0.1)
    wait_for(lambda: any(pid == other.pid for _, pid, _ in log_of(tmp_path)))
    sweep = sweep_of_all(search={"method": "grid"})
    environment = {"fingerprint": "alike", "schema_version": 1}
    directory = RunDirectory.create(
        tmp_path / "r", "small", spec=sweep_document(sweep), environment=environment
    )
    task = SearchTask(sweep, tmp_path, environment, url, tmp_path.name, heartbeat=Heartbeat(1, 3))
    with directory:
        found = Session(task, directory, FakeRunner(seconds=0.05), Ear()).run()
    assert other.wait(timeout=30) == 0
    (elsewhere,) = found.elsewhere
    assert elsewhere.name == f"{directory.run_id}@unlike"
    here = {r.trial_id for r in load_records(directory.path)}
    there = {r.trial_id for r in load_records(elsewhere)}
    assert here
    assert there
    assert not here & there
    assert found.final.best is not None
    assert found.final.best.trial_id in here, "unlike machines are not ranked together"


def test_no_message_and_no_file_holds_the_password(url: str, tmp_path: Path, start: Start) -> None:
    wrong = url.replace("zbench:", "zbench:not")
    with pytest.raises(StudyStorageError, match="password authentication failed") as caught:
        relational_storage(wrong)
    secrets = (postgres.PASSWORD, postgres.PASSWORD.replace("/", "%2F").replace("@", "%40"))
    assert not any(secret in str(caught.value) for secret in secrets)
    assert "zbench:***@" in str(caught.value)
    worker = start(url, tmp_path, "w", seconds=0.0)
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 0, errors.decode()
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert written
    for text in [errors, *(file.read_bytes() for file in written)]:
        assert not any(secret.encode() in text for secret in secrets)
