"""The long measurements that are kept one by one: what they read from a comparison, and what they count."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.analysis.synthetic import trial
from tools.benchmarks import false_claims
from tools.benchmarks.trials import neighbour
from zbench.analysis.compare import Comparison, compare_runs
from zbench.analysis.settings import Settings
from zbench.analysis.trials import RunResults, Source

STEPS = [0.1, 0.101, 0.099, 0.1, 0.1005]
SLOWER = ("1.1", "1.25", "2")


def compared(factor: float) -> Comparison:
    source = Source("run", facts={"machine": "one"})
    runs = [RunResults.of(source, trial([by * step for step in STEPS])) for by in (1.0, factor)]
    return compare_runs(*runs, Settings())


@pytest.mark.parametrize(
    ("factor", "answer", "claimed"), [(1.0, "pass", False), (1.8, "regression", True), (0.5, "faster", True)]
)
def test_a_claim_of_more_than_five_percent_is_counted(factor: float, answer: str, claimed: bool) -> None:
    finding = false_claims.comparison_finding("quiet", compared(factor), dict.fromkeys(SLOWER, "regression"))
    assert (finding["answer"], finding["claimed"]) == (answer, claimed)
    cells = false_claims.table([finding]).splitlines()[-1].split(" | ")
    assert cells[1:3] + cells[5:] == ["1", str(int(claimed)), str(int(answer == "pass")), "1", "1", "1 |"]


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
        "import os, psutil\nfrom tools.benchmarks.trials import neighbour\n"
        "with neighbour():\n"
        "    print(*(c.pid for c in psutil.Process().children()), flush=True)\n    os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pids = [int(word) for word in done.stdout.split()]
    assert pids
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        time.sleep(0.05)
