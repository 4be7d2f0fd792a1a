"""A shared study while its PostgreSQL server is killed and started again: no trial lost, none run twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from zbench.launch.events import Notice, Watch
from zbench.record.record import Record
from zbench.record.store import RunDirectory
from zbench.spec.sweep import sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.outage import Outages, is_outage
from zbench.tune.session import SearchTask, Session
from zbench.tune.storage import relational_storage

from . import postgres
from .fakes import Ear, FakeRunner, small_sweep

pytestmark = [
    pytest.mark.skipif(postgres.BINARIES is None, reason="PostgreSQL's server is not installed"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]
ROOT = Path(__file__).parents[2]
WORKERS, BUCKETS, POINTS = int(os.environ.get("ZBENCH_WORKERS", "16")), 16, 80


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
        assert not any("point" in trial.user_attrs for trial in running), "begun in the outage: no point"
        ended = [trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        assert all(len(trial.user_attrs["records"]) == 1 for trial in ended)
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


def test_an_outage_that_is_too_long_ends_with_the_databases_own_error(server: postgres.Server) -> None:
    storage = relational_storage(server.url)
    server.stop()
    ear = Ear()
    outages = Outages(0.5, lambda text: ear(Notice(text)))
    with pytest.raises(optuna.exceptions.StorageInternalError) as caught:
        outages.outlast(storage.get_all_studies)
    assert is_outage(caught.value)
    assert len(ear.of(Notice)) == 1, "it is said once"
    assert outages.was_within(60.0)
    storage.engine.dispose()


def test_what_is_no_outage_is_not_tried_again() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        Outages().outlast(fail)
    assert len(calls) == 1


def start(url: str, home: Path, name: str) -> subprocess.Popen[bytes]:
    job = {"url": url, "host": name, "home": str(home / name), "log": str(home / f"{name}.log")}
    job |= {"fingerprint": "alike", "seconds": "8.0", "study": home.name}
    (home / name).mkdir()
    words = json.dumps(job | {"buckets": str(BUCKETS), "grace": "20"})
    return subprocess.Popen(
        [sys.executable, "-m", "tests.tune.lone_worker", words], cwd=ROOT, stderr=subprocess.PIPE
    )


def log_of(home: Path) -> list[tuple[str, int, str]]:
    lines = [line for file in home.glob("*.log") for line in file.read_text().splitlines()]
    return [(what, pid, trial_id) for what, pid, trial_id, _ in map(json.loads, lines)]


def at_work(home: Path) -> dict[int, str]:
    """Return the trial that each worker has begun and not ended."""
    log = log_of(home)
    ended = {(pid, trial_id) for what, pid, trial_id in log if what == "ended"}
    return {pid: trial for what, pid, trial in log if what == "began" and (pid, trial) not in ended}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_sixteen_workers_two_killed_and_the_server_restarted(server: postgres.Server, tmp_path: Path) -> None:
    workers = {w.pid: w for w in (start(server.url, tmp_path, f"w{n:02}") for n in range(WORKERS))}
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
    assert len(ended) == POINTS
    assert set(ended.values()) == {1}, "nothing was run to its end twice"
    began = Counter(trial_id for what, _, trial_id in log if what == "began")
    assert began == ended + Counter(lost.values()), "nothing but what the victims had was begun twice"
    assert ended_once(server.url, tmp_path.name) == ended, "the study has what ran, and nothing else"
