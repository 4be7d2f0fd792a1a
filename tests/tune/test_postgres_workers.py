"""The command line on a real PostgreSQL: one `zbench tune`, two `zbench worker`, one of them killed.

By default their trials are of fake workers, and a lost worker is given up soon; `make soak` trains for real.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch import injected
from zbench.record.store import find_runs, load_records
from zbench.tune.storage import relational_storage

from . import postgres

pytestmark = [
    pytest.mark.skipif(postgres.BINARIES is None, reason="PostgreSQL's server is not installed"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]
SWEEP = """
name: shared
run: {world_size: 2, warmup_steps: 1, steps: 60, timeout: 60s}
axes: {zero_stage: [0, 1, 2], reduce_bucket_size: [1e4, 4e4]}
verify: {mode: reference}
"""
POINTS = 6
REAL = (
    "workload: {model: mlp, options: {layers: 2, hidden: 32}, data: {synthetic: true}, sequence_length: 16}"
)
FAKE = "workload: {model: 'fake:model', options: {sleep: 1.0}}"
DRIVER = Path(__file__).parents[1] / "launch" / "driver.py"
SOON = {injected.PACE: "2"}  # seconds between heartbeats


@pytest.fixture
def url() -> Iterator[str]:
    pytest.importorskip("psycopg")
    with postgres.server() as found:
        yield found


def zbench(home: Path, url: str, *words: object, real: bool) -> subprocess.Popen[str]:
    """Start a command whose results go to `home`; the password travels in the environment."""
    program = ["-m", "zbench.cli.main"] if real else [str(DRIVER)]
    path = os.pathsep.join(filter(None, [str(DRIVER.parent), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, *program, *map(str, words), "-o", str(home), "--json", "-q"],
        env=os.environ | {"ZBENCH_STORAGE": url, "PYTHONPATH": path} | ({} if real else SOON),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def under_way(home: Path) -> set[str]:
    """Return the trials that a command has begun and not recorded."""
    begun = {log.name.partition("-r")[0] for log in home.glob("*/*/logs/*-r*") if "reference" not in log.name}
    return begun - {record.trial_id for run in find_runs(home) for record in load_records(run)}


def wait_for(condition: Callable[[], object], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        ended = [process.communicate() for process in processes if process.poll() is not None]
        assert not ended, ended
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)  # to look takes a while, too


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_worker_that_is_killed_in_a_trial_loses_nothing(url: str, tmp_path: Path, real: bool) -> None:
    file = tmp_path / "shared.yaml"
    file.write_text(SWEEP + (REAL if real else FAKE))
    homes = [tmp_path / name for name in ("asks", "helps", "dies")]
    asks = zbench(homes[0], url, "tune", file, "--method", "grid", "--repeats", "2", real=real)
    studies = relational_storage(url)
    wait_for(lambda: any(study.user_attrs for study in studies.get_all_studies()), asks)
    dies, helps = (zbench(home, url, "worker", "--study", "shared", real=real) for home in homes[:0:-1])
    wait_for(lambda: under_way(homes[2]), asks, dies)
    (lost,) = under_way(homes[2])
    os.kill(dies.pid, signal.SIGKILL)
    dies.communicate()
    assert lost in under_way(homes[2]), "it was killed in the middle of the trial"

    said, errors = asks.communicate(timeout=120)
    assert asks.returncode == 0, errors
    assert helps.communicate(timeout=60)[1] == ""
    assert helps.returncode == 0
    document = json.loads(said)
    ran = Counter(r["trial_id"] for r in document["trials"] if r["repeat"] == 0 and r["outcome"] != "invalid")
    assert len(ran) == POINTS
    assert set(ran.values()) == {1}
    assert lost in ran, "another worker ran it"
    assert {r["correctness"]["verdict"] for r in document["trials"]} == {"identical"}
    assert document["recommended"] in ran
    everywhere = [record for home in homes for run in find_runs(home) for record in load_records(run)]
    runs = {(record.trial_id, record.elapsed_s) for record in everywhere if record.repeat == 0}
    assert len(runs) == POINTS, "each worker has everybody's results; no point was run to its end by two"
    studies.engine.dispose()
