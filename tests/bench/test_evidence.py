"""The long measurements that are kept unit by unit: what they read from a comparison, and what they count."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from analysis.synthetic import trial

from zbench.analysis.compare import PAIRED_THRESHOLDS, Comparison, Settings, compare_runs
from zbench.analysis.trials import RunResults, Source
from zbench.bench import a_a, docs_only, ranking
from zbench.bench.neighbour import neighbour
from zbench.bench.resumable import Kept
from zbench.report.exports.document import document

STEPS = [0.1, 0.101, 0.099, 0.1, 0.1005]


def compared(factor: float, **settings: float) -> Comparison:
    source = Source("run", facts={"machine": "one"})
    runs = [RunResults.of(source, trial([by * step for step in STEPS])) for by in (1.0, factor)]
    return compare_runs(*runs, Settings(**settings))


def test_a_measurement_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first = Kept(tmp_path / "folder" / "found")
    first.add({"kind": "a", "value": 1})
    first.add({"kind": "b", "value": 2})
    again = Kept(tmp_path / "folder" / "found")
    assert again.found == first.found
    assert again.of("b") == [{"kind": "b", "value": 2}]


@pytest.mark.parametrize(
    ("factor", "answer", "claimed"), [(1.0, "pass", False), (1.8, "regression", True), (0.5, "pass", True)]
)
def test_a_claim_of_more_than_five_percent_is_counted(factor: float, answer: str, claimed: bool) -> None:
    found = a_a.finding("both", compared(factor, run_noise=0.01))
    assert (found["answer"], found["claimed"]) == (answer, claimed)
    assert found["faster"] == (factor < 1)
    text = a_a.table([found])
    assert f"| {a_a.NAMES['both']} | 1 | {int(answer == 'regression')} | {int(claimed)} |" in text


def test_a_red_commit_and_an_unequal_figure_are_counted() -> None:
    settings = Settings(thresholds=PAIRED_THRESHOLDS)
    source = Source("run", facts={"machine": "one"})
    sides = [trial(STEPS), trial(STEPS)]
    runs = [RunResults.of(source, side) for side in sides]
    equal = docs_only.finding("exact", {"code": 0, "comparison": document(compare_runs(*runs, settings))})
    assert equal["compared"] > 0
    assert equal["unequal"] == []
    red = {**equal, "code": 1, "unequal": ["allocations"], "answers": ["regression"]}
    assert f"| 2 | 1 | {equal['answers'][0]}" not in docs_only.table([equal], "0")
    assert "| 2 | 1 |" in docs_only.table([equal, red], "0")
    assert docs_only.table([equal, red], "0").endswith(f"| {2 * equal['compared']} | 1 |")


def test_the_neighbour_keeps_every_core_busy_and_goes() -> None:
    before = {child.pid for child in psutil.Process().children()}
    with neighbour():
        busy = [child for child in psutil.Process().children() if child.pid not in before]
        assert len(busy) == len(os.sched_getaffinity(0))
        while any(child.num_ctx_switches().involuntary + child.cpu_times().user < 0.05 for child in busy):
            time.sleep(0.05)
    assert {child.pid for child in psutil.Process().children()} <= before


def test_the_neighbour_ends_with_the_process_that_started_it() -> None:
    code = (
        "import os, psutil\nfrom zbench.bench.neighbour import neighbour\n"
        "with neighbour():\n"
        "    print(*(c.pid for c in psutil.Process().children()), flush=True)\n    os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left = [int(word) for word in done.stdout.split()]
    assert left
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in left):
        time.sleep(0.05)


def test_a_ranking_counts_sweeps_that_named_a_best() -> None:
    found = {"best": None, "leaders": 6, "apparent_lead": 0.1, "spread": 0.2, "disturbed": 3, "records": 18}
    text = ranking.table([found, {**found, "best": "equal3"}], 3)
    assert "| 2 | 1 | 0 |" in text
    assert "6 of 36 repeats" in text
    json.dumps(found)
