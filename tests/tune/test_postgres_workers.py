"""The command line on a real PostgreSQL: one `zbench tune`, two `zbench worker`, one of them killed.

By default their trials are of fake workers; `make soak` trains for real.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.processes import until
from zbench.record.store import find_runs, load_records
from zbench.tune.storage import relational_storage

from . import postgres
from .studies import silence

SWEEP = """
name: shared
run: {world_size: 2, warmup_steps: 1, steps: 60, timeout: 600s}
axes: {zero_stage: [0, 1, 2], reduce_bucket_size: [1e4, 4e4]}
verify: {mode: reference}
"""
POINTS = 6
REAL = (
    "workload: {model: mlp, options: {layers: 2, hidden: 32}, data: {synthetic: true}, sequence_length: 16}"
)
FAKE = "workload: {model: 'fake:model', options: {gate: GATE}}"
DRIVER = Path(__file__).parents[1] / "launch" / "driver.py"
HANG = 600.0
"""Seconds after which something that is waited for will not come."""


def zbench(home: Path, url: str, *words: object, real: bool) -> subprocess.Popen[str]:
    """Start a command whose results go to `home`; the password travels in the environment."""
    program = ["-m", "zbench.cli.main"] if real else [str(DRIVER)]
    path = os.pathsep.join(filter(None, [str(DRIVER.parent), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, *program, *map(str, words), "-o", str(home), "--json", "-q"],
        env=os.environ | {"ZBENCH_STORAGE": url, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def under_way(home: Path) -> set[str]:
    """Return the trials that a command has begun and not recorded."""
    begun = {log.name.partition("-r")[0] for log in home.glob("*/*/logs/*-r*") if "reference" not in log.name}
    return begun - {record.trial_id for run in find_runs(home) for record in load_records(run)}


def wait_for(condition: Callable[[], object], *processes: subprocess.Popen[str]) -> None:
    """Return once it is so; a process that ended meanwhile fails the test with what it printed."""

    def is_over() -> bool:
        return bool(condition()) or any(process.poll() is not None for process in processes)

    until(is_over, "a worker's next deed", HANG, pause=0.05)
    assert condition(), [process.communicate() for process in processes if process.poll() is not None]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_worker_that_is_killed_in_a_trial_loses_nothing(
    server: postgres.Server, tmp_path: Path, real: bool
) -> None:
    url = server.url
    file = tmp_path / "shared.yaml"
    gate = tmp_path / "open"  # every first trial of a fake worker waits for it
    file.write_text(SWEEP + (REAL if real else FAKE.replace("GATE", str(gate))))
    homes = [tmp_path / name for name in ("asks", "helps", "dies")]
    asks = zbench(homes[0], url, "tune", file, "--method", "grid", "--repeats", "2", real=real)
    studies = relational_storage(url)
    wait_for(lambda: any(s.user_attrs and s.study_name == "shared" for s in studies.get_all_studies()), asks)
    dies, helps = (zbench(home, url, "worker", "--study", "shared", real=real) for home in homes[:0:-1])
    wait_for(lambda: all(map(under_way, homes[real * 2 :])), asks, dies, helps)
    (lost,) = under_way(homes[2])
    dies.kill()
    dies.communicate()
    assert lost in under_way(homes[2]), "it was killed in the middle of the trial"
    silence(url, dies.pid)
    gate.touch()

    output, errors = asks.communicate(timeout=HANG)
    assert asks.returncode == 0, errors
    assert helps.communicate(timeout=HANG)[1] == ""
    assert helps.returncode == 0
    document = json.loads(output)
    ran = Counter(r["trial_id"] for r in document["trials"] if r["repeat"] == 0)
    assert len(ran) == POINTS
    assert set(ran.values()) == {1}
    assert lost in ran, "another worker ran it"
    assert {r["correctness"]["verdict"] for r in document["trials"]} == {"identical"}
    assert document["recommended"] in ran
    everywhere = [record for home in homes for run in find_runs(home) for record in load_records(run)]
    runs = {(record.trial_id, record.elapsed_s) for record in everywhere if record.repeat == 0}
    assert len(runs) == POINTS, "each worker has everybody's results; no point was run to its end by two"
    studies.engine.dispose()
