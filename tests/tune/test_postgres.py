"""Several workers, one study, a real PostgreSQL server; workers and the server are killed under trials."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.trial import TrialState

from tests.launch.processes import until
from zbench.launch.executor import RepeatTask
from zbench.record.store import find_runs, load_records
from zbench.tune.space import Space
from zbench.tune.storage import StudyStorageError, relational_storage

from . import postgres
from .fakes import SMALL_AXES, FakeMachine, searched, silence, small_sweep

ROOT = Path(__file__).parents[2]
WORKERS = int(os.environ.get("ZBENCH_WORKERS", "16"))
HANG = 600.0
"""Seconds after which something that is waited for will not come."""


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """Run a server that a test may kill and start again; every test has a study of its own."""
    pytest.importorskip("psycopg")
    if postgres.BINARIES is None:
        pytest.skip("PostgreSQL's server is not installed")
    with postgres.running() as server:
        yield server


def start(server: postgres.Server, home: Path, name: str, **job: Any) -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own."""
    (home / name).mkdir()
    whole = {"home": str(home / name), "log": str(home / f"{name}.log"), "study": home.name, "buckets": 2}
    whole |= {"url": server.url, "search": {"method": "grid"}} | job
    words = [sys.executable, "-m", "tests.tune.fakes", json.dumps(whole)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE)


def log_of(home: Path) -> list[tuple[str, int, str]]:
    lines = [line for file in home.glob("*.log") for line in file.read_text().splitlines()]
    return [(event, pid, trial_id) for event, pid, trial_id, _ in map(json.loads, lines)]


def at_work(home: Path) -> dict[int, str]:
    """Return the trial that each worker has begun and not ended."""
    log = log_of(home)
    ended = {(pid, trial_id) for event, pid, trial_id in log if event == "ended"}
    return {pid: trial for event, pid, trial in log if event == "began" and (pid, trial) not in ended}


def ended_once(url: str, study: str) -> Counter[str]:
    """Return how often each point of a study ended."""
    storage = relational_storage(url)
    try:
        trials = optuna.load_study(study_name=study, storage=storage).get_trials(deepcopy=False)
        assert not [trial for trial in trials if trial.state == TrialState.RUNNING]
        ended = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        assert all("record" in trial.user_attrs for trial in ended)
        return Counter(trial.user_attrs["trial_id"] for trial in ended)
    finally:
        storage.engine.dispose()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("workers", "lost", "buckets", "seconds", "is_restarted"),
    [(2, 1, 2, 0.25, False), pytest.param(WORKERS - 2, 2, 16, 8.0, True, marks=pytest.mark.soak)],
)
def test_workers_run_every_point_once_though_processes_are_killed(
    server: postgres.Server,
    tmp_path: Path,
    workers: int,
    lost: int,
    buckets: int,
    seconds: float,
    is_restarted: bool,
) -> None:
    sizes = {"reduce_bucket_size": [10_000 * (n + 1) for n in range(buckets)]}
    space = Space(small_sweep(axes=SMALL_AXES | sizes))
    points = Counter(space.trial(point).trial_id for point in space.points() or ())
    begin = partial(start, server, tmp_path, buckets=buckets)
    victims = {victim.pid: victim for victim in (begin(f"v{n}", seconds=600.0) for n in range(lost))}
    until(lambda: victims.keys() <= at_work(tmp_path).keys(), "every victim begins a trial", HANG)
    others = [begin(f"w{number:02}", seconds=seconds) for number in range(workers)]
    until(lambda: len(log_of(tmp_path)) > lost, "another begins a trial", HANG)
    for pid, victim in victims.items():
        victim.kill()
        victim.communicate()
        silence(server.url, pid)
    if is_restarted:
        server.kill()
        server.start()
    for worker in others:
        _, errors = worker.communicate(timeout=HANG + 16 * seconds)
        assert worker.returncode == 0, errors.decode()
    log = log_of(tmp_path)
    began, ended = (Counter(trial for event, _, trial in log if event == kind) for kind in ("began", "ended"))
    assert ended == points, "every point ended exactly once, those of the victims too"
    begun_twice = Counter(at_work(tmp_path)[pid] for pid in victims)
    assert began == points + begun_twice, "nothing but what the victims had"
    assert ended_once(server.url, tmp_path.name) == points, "the study has what ran, and nothing else"
    runs = [run for number in range(workers) for run in find_runs(tmp_path / f"w{number:02}")]
    assert {r.trial_id for run in runs for r in load_records(run)} == set(points)


def test_workers_that_meet_an_empty_database_at_once_all_enter(server: postgres.Server) -> None:
    admin = relational_storage(server.url).engine
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sqlalchemy.text("CREATE DATABASE empty"))
    admin.dispose()
    empty = server.url.replace("/postgres?", "/empty?")
    with ThreadPoolExecutor(8) as workers:
        storages = list(workers.map(relational_storage, [empty] * 8))
    assert [storage.get_all_studies() for storage in storages] == [[]] * 8
    for storage in storages:
        storage.engine.dispose()


def test_no_message_and_no_file_holds_the_password(
    server: postgres.Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = server.url.replace("zbench:", "zbench:not")
    with pytest.raises(StudyStorageError, match="password authentication failed") as caught:
        relational_storage(wrong)
    secrets = (postgres.PASSWORD, postgres.PASSWORD.replace("/", "%2F").replace("@", "%40"))
    assert not any(secret in str(caught.value) for secret in secrets)
    assert "zbench:***@" in str(caught.value)
    task = {"storage": server.url, "study": tmp_path.name, "is_worker": True}
    searched(tmp_path, task=task, search={"method": "grid", "trials": 2})
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert written
    for text in ["".join(capfd.readouterr()).encode(), *(file.read_bytes() for file in written)]:
        assert not any(secret.encode() in text for secret in secrets)


@pytest.mark.check
def test_a_search_outlives_a_server_killed_under_a_trial(server: postgres.Server, tmp_path: Path) -> None:
    begun = itertools.count()

    def unlucky(_: RepeatTask) -> None:
        if next(begun) == 3:
            server.kill()
            server.start()

    task = {"storage": server.url, "study": tmp_path.name, "is_worker": True}
    search = searched(tmp_path, FakeMachine(before_each=unlucky), task=task, search={"method": "grid"})
    ended = ended_once(server.url, tmp_path.name)
    assert ended == Counter(trial_id for trial_id, _ in search.began)
    assert set(ended.values()) == {1}
    assert len(search.firsts) == len(ended) == 15
