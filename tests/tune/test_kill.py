"""kill -9 of a search at random moments: finished trials stay, nothing runs twice, the end is the same."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from zbench.record.record import Record
from zbench.record.store import find_runs, load_records

from .fakes import main

ROOT = Path(__file__).parents[2]
TRIALS = 12
SOAK_KILLS = int(os.environ.get("SOAK_KILLS", "100"))
BATCH = 5


def records_of(home: Path) -> list[Record]:
    (run,) = find_runs(home)
    return load_records(run)


def job(home: Path, seconds: float) -> dict[str, Any]:
    search = {"method": "tpe", "trials": TRIALS, "patience": 99}
    return {"home": str(home), "log": str(home / "log"), "seconds": seconds, "search": search}


def killed_and_resumed(home: Path, kills: int, seed: int) -> int:
    """Kill the search at random moments after it began a trial; return how often it was hit."""
    generator = random.Random(seed)
    hits = 0
    for _ in range(kills):
        log = home / "log"
        words = [sys.executable, "-m", "tests.tune.fakes", json.dumps(job(home, 0.03))]
        process = subprocess.Popen(words, cwd=ROOT)
        before = log.stat().st_size if log.exists() else 0
        while process.poll() is None and (not log.exists() or log.stat().st_size == before):
            time.sleep(0.005)
        time.sleep(generator.uniform(0, 0.25))
        hits += process.poll() is None
        process.kill()
        process.wait()
    return hits


def check(tmp_path: Path, kills: int, seed: int = 1) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    best = main(**job(undisturbed, 0.0))
    hits = killed_and_resumed(killed, kills, seed)
    assert hits, "it was never hit"
    assert main(**job(killed, 0.0)) == best
    whole, again = records_of(undisturbed), records_of(killed)
    assert Counter((r.trial_id, r.repeat) for r in again) == Counter((r.trial_id, r.repeat) for r in whole)
    assert {(r.trial_id, r.repeat): r.timing for r in again} == {
        (r.trial_id, r.repeat): r.timing for r in whole
    }
    ended = Counter(
        tuple(line[2:]) for line in map(json.loads, (killed / "log").open()) if line[0] == "ended"
    )
    repeated = {key for key, count in ended.items() if count > 1}
    assert len(repeated) <= hits, "only a trial whose record a kill cut off runs again"


def test_a_search_that_is_killed_resumes_to_the_same_end(tmp_path: Path) -> None:
    check(tmp_path, kills=2)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_search_that_is_killed_many_times(tmp_path: Path) -> None:
    for batch in range(max(1, SOAK_KILLS // BATCH)):
        (tmp_path / str(batch)).mkdir()
        check(tmp_path / str(batch), kills=BATCH, seed=batch + 1)
