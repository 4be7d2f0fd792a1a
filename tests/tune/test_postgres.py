"""Several workers, one study, a real PostgreSQL server; workers and the server are killed under trials."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from zbench.launch.events import Notice, Watch
from zbench.record.record import Record
from zbench.record.store import RunDirectory, find_runs, load_records
from zbench.spec.sweep import SweepSpec, sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.session import SearchTask, Session
from zbench.tune.space import Space
from zbench.tune.storage import Heartbeat, StudyStorageError, relational_storage

from . import postgres
from .fakes import SMALL_AXES, Ear, FakeRunner, small_sweep

pytestmark = [
    pytest.mark.skipif(postgres.BINARIES is None, reason="PostgreSQL's server is not installed"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]
ROOT = Path(__file__).parents[2]
BUCKETS, MANY_BUCKETS = 2, 16
WORKERS = int(os.environ.get("ZBENCH_WORKERS", "16"))


def sweep_of_all(**changes: Any) -> SweepSpec:
    """Return the sweep that the workers of this file share: 10 points."""
    sizes = [10_000 * (n + 1) for n in range(BUCKETS)]
    return small_sweep(axes=SMALL_AXES | {"reduce_bucket_size": sizes}, **changes)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pytest.importorskip("psycopg")
    with postgres.server() as found:
        yield found


def start(url: str, home: Path, name: str, *, seconds: float = 0.25, **job: Any) -> subprocess.Popen[bytes]:
    """Start a worker in a process of its own."""
    (home / name).mkdir()
    whole = {"home": str(home / name), "log": str(home / f"{name}.log"), "seconds": seconds, "url": url}
    whole |= {"study": home.name, "buckets": BUCKETS, "search": {"method": "grid"}} | job
    words = [sys.executable, "-m", "tests.tune.lone", json.dumps(whole)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE)


def log_of(home: Path) -> list[tuple[str, int, str]]:
    lines = [line for file in home.glob("*.log") for line in file.read_text().splitlines()]
    return [(what, pid, trial_id) for what, pid, trial_id, _ in map(json.loads, lines)]


def wait_for(condition, seconds: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def test_three_workers_run_every_point_once_though_one_is_killed(url: str, tmp_path: Path) -> None:
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


def test_workers_that_meet_an_empty_database_at_once_all_enter() -> None:
    pytest.importorskip("psycopg")
    with postgres.server() as empty, ThreadPoolExecutor(8) as workers:
        storages = list(workers.map(relational_storage, [empty] * 8))
        assert [storage.get_all_studies() for storage in storages] == [[]] * 8
        for storage in storages:
            storage.engine.dispose()


def test_unlike_machines_share_a_study_and_are_ranked_apart(url: str, tmp_path: Path) -> None:
    other = start(url, tmp_path, "other", fingerprint="unlike", seconds=0.1)
    wait_for(lambda: any(pid == other.pid for _, pid, _ in log_of(tmp_path)))
    sweep, ear = sweep_of_all(search={"method": "grid"}), Ear()
    environment = {"fingerprint": "alike", "schema_version": 1}
    directory = RunDirectory.create(
        tmp_path / "r", "small", spec=sweep_document(sweep), environment=environment
    )
    task = SearchTask(sweep, tmp_path, environment, url, tmp_path.name, heartbeat=Heartbeat(1, 3))
    with directory:
        found = Session(task, directory, FakeRunner(seconds=0.05), ear).run()
    assert other.wait(timeout=30) == 0
    runs = (directory.path, find_runs(tmp_path / "other")[0])
    here, there = ({r.trial_id for r in load_records(run) if r.outcome != "invalid"} for run in runs)
    assert here
    assert there
    assert not here & there
    assert found.final.best is not None
    assert found.final.best.trial_id in here
    assert "other kinds of machines" in ear.of(Notice)[-1].text


def test_no_message_and_no_file_holds_the_password(url: str, tmp_path: Path) -> None:
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


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    pytest.importorskip("psycopg")
    with postgres.running() as found:
        yield found


def ended_once(url: str, study: str) -> Counter[str]:
    """Return how often each point of a study ended."""
    storage = relational_storage(url)
    try:
        trials = optuna.load_study(study_name=study, storage=storage).get_trials(deepcopy=False)
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        assert running == []
        ended = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        assert all("record" in trial.user_attrs for trial in ended)
        return Counter(trial.user_attrs["trial_id"] for trial in ended)
    finally:
        storage.engine.dispose()


def test_a_search_goes_on_where_the_server_is_killed_under_a_trial(
    server: postgres.Server, tmp_path: Path
) -> None:
    class Unlucky(FakeRunner):
        def run(self, trial: TrialSpec, *, repeat: int = 0, watch: Watch | None = None) -> Record:
            if len(self.began) == 3:
                server.kill()
                server.start()
            return super().run(trial, repeat=repeat, watch=watch)

    sweep = small_sweep(search={"method": "grid"})
    environment = {"fingerprint": "alike", "schema_version": 1}
    directory = RunDirectory.create(tmp_path, "small", spec=sweep_document(sweep), environment=environment)
    runner = Unlucky()
    task = SearchTask(sweep, tmp_path, environment, server.url, "study", is_worker=True)
    with directory:
        Session(task, directory, runner, Ear()).run()
    ended = ended_once(server.url, "study")
    assert set(ended.values()) == {1}
    assert sorted(ended) == sorted(trial_id for trial_id, _ in runner.began)
    assert len(directory.records()) >= len(ended) == 15


def at_work(home: Path) -> dict[int, str]:
    """Return the trial that each worker has begun and not ended."""
    log = log_of(home)
    ended = {(pid, trial_id) for what, pid, trial_id in log if what == "ended"}
    return {pid: trial for what, pid, trial in log if what == "began" and (pid, trial) not in ended}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_sixteen_workers_two_killed_and_the_server_restarted(server: postgres.Server, tmp_path: Path) -> None:
    job = {"seconds": 8.0, "buckets": MANY_BUCKETS, "grace": 20}
    started = [start(server.url, tmp_path, f"w{number:02}", **job) for number in range(WORKERS)]
    workers = {worker.pid: worker for worker in started}
    try:
        give_up = time.monotonic() + 400
        while len(at_work(tmp_path)) < WORKERS // 2:  # the first ones should not end before the last begin
            assert time.monotonic() < give_up, "nothing happened"
            time.sleep(0.05)
        victims = random.Random(1).sample(sorted(at_work(tmp_path)), 2)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        lost = {pid: trial for pid, trial in at_work(tmp_path).items() if pid in victims}
        server.kill()
        time.sleep(1.5)
        server.start()
        errors = {pid: worker.communicate(timeout=400)[1].decode() for pid, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.kill()
    failed = {pid: errors[pid] for pid, worker in workers.items() if worker.returncode and pid not in victims}
    assert not failed
    log = log_of(tmp_path)
    ended = Counter(trial_id for what, _, trial_id in log if what == "ended")
    assert len(ended) == 5 * MANY_BUCKETS
    assert set(ended.values()) == {1}, "nothing was run to its end twice"
    began = Counter(trial_id for what, _, trial_id in log if what == "began")
    assert began == ended + Counter(lost.values()), "nothing but what the victims had was begun twice"
    assert ended_once(server.url, tmp_path.name) == ended, "the study has what ran, and nothing else"
