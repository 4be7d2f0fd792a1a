"""`--slurm` on a real SLURM of two nodes: arrays, requeues, preemption, a node that dies, a killed command.

Soak: SLURM is installed where it is missing (Debian, root), and started by itself in a private directory.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from zbench.record.store import find_runs, load_records

from . import slurm_cluster
from .slurm_cluster import Cluster

pytest.importorskip("submitit")
pytestmark = pytest.mark.soak
HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
FAKE = """
name: fake
workload: {{model: "fake:model", options: {{gate: {gate}, sleep: 0.5, do: describe}}}}
run: {{world_size: 2, repeats: {repeats}, timeout: 120s}}
axes: {{zero_stage: {stages}}}
verify: {{mode: reference}}
"""
REAL = """
name: real
workload: {model: mlp, options: {layers: 2, hidden: 32}, data: {synthetic: true}, sequence_length: 16}
run: {world_size: 2, warmup_steps: 1, steps: 4, repeats: 1, threads_per_rank: 1, timeout: 120s}
axes: {zero_stage: [1, 3]}
verify: {mode: full}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    reason = slurm_cluster.why_not()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster.running() as daemons:
        yield daemons


class Command:
    """A zbench command under way on the cluster, with fake workers that wait for `gate` unless `real`."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster = cluster
        self.home = home
        self.gate = home / "gate"
        self._running: subprocess.Popen[str] | None = None
        (home / "fake.py").write_text("def model(): ...\n")

    def file(self, text: str, **values: Any) -> Path:
        """Write a sweep file."""
        path = self.home / "sweep.yaml"
        path.write_text(text.format(gate=self.gate, **values) if values else text)
        return path

    def start(self, *words: object, real: bool = False, within: Sequence[str] = ()) -> None:
        """Start a command, by `within` if given."""
        program = ["-m", "zbench.cli.main"] if real else [str(HERE / "driver.py")]
        path = os.pathsep.join(filter(None, [str(HERE), str(ROOT), os.environ.get("PYTHONPATH")]))
        self._running = subprocess.Popen(
            [*within, sys.executable, *program, *map(str, words), "--json", "-o", str(self.home / "results")],
            env=os.environ | self.cluster.environment | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
        )

    def end(self, code: int = 0) -> dict[str, Any]:
        """Wait for its end and return its document."""
        assert self._running is not None
        stdout, errors = self._running.communicate(timeout=240)
        assert self._running.returncode == code, errors + self.cluster.last_words()
        document: dict[str, Any] = json.loads(stdout)
        assert "sacct" not in errors
        return document

    def end_well(self, count: int) -> dict[str, Any]:
        """Wait for its end; so many repeats are on disk, each once and verified."""
        document = self.end()
        (run,) = find_runs(self.home / "results")
        records = load_records(run)
        assert len(records) == len({(record.trial_id, record.repeat) for record in records}) == count
        assert {(one.outcome, one.correctness.verdict) for one in records} == {("ok", "identical")}
        return document

    def kill(self) -> None:
        """Kill it without a farewell; what it has started may still hold its pipes."""
        assert self._running is not None
        self._running.kill()
        self._running.wait()

    def running(self) -> dict[str, str]:
        """Return the node of each job that runs, by its number."""
        lines = self.cluster.ask("squeue", "-h", "-r", "-t", "running", "-o", "%i %N").splitlines()
        return dict(line.split() for line in lines)

    def until_running(self, count: int) -> dict[str, str]:
        """Wait until so many jobs run that have started their workers, and return their nodes."""

        def all_started() -> bool:
            jobs = self.running()
            begun = [path for job in jobs for path in self.home.rglob(f"logs/slurm/*/{job}-*")]
            return len(jobs) == count == len(begun)

        self.cluster.until(all_started, f"{count} jobs run", 90.0)
        return self.running()


@pytest.fixture
def command(cluster: Cluster, tmp_path: Path) -> Iterator[Command]:
    tmp_path.chmod(0o755)
    handle = Command(cluster, tmp_path)
    yield handle
    if handle._running is not None and handle._running.poll() is None:
        handle.kill()
    cluster.ask("scancel", "--user=root")
    cluster.until(lambda: not cluster.ask("squeue", "-h"), "no job is left")


def test_a_round_is_one_array_on_all_nodes_and_every_result_is_there_once(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=2, stages=[0, 1, 2, 3]), "--slurm", "timeout_min=5")
    nodes = command.until_running(2)
    assert set(nodes.values()) == set(slurm_cluster.NODES), "both nodes are used at once"
    assert len({job.partition("_")[0] for job in nodes}) == 1, "the jobs are tasks of one array"
    command.gate.touch()
    assert len(command.end_well(8)["trials"]) == 8


def test_a_real_trial_over_both_nodes_computes_its_reference(command: Command) -> None:
    command.start("sweep", command.file(REAL), "--slurm", "nodes=2", real=True)
    command.end_well(2)


def test_within_an_allocation_each_node_has_a_heat_of_its_own(command: Command) -> None:
    command.gate.touch()
    command.start(
        "sweep",
        command.file(FAKE.replace("timeout", "heat: 2, timeout"), repeats=1, stages=[0, 1, 2, 3]),
        "--slurm",
        "nodes=1",
        within=("salloc", "--quiet", "-N2", "--exclusive"),
    )
    document = command.end_well(4)
    assert {node for trial in document["trials"] for node in trial["placement"]["nodes"]} == {
        f"{name} ({name[:8]})" for name in slurm_cluster.NODES
    }


def test_a_search_runs_its_trials_as_jobs(command: Command) -> None:
    command.gate.touch()
    command.start(
        "tune", command.file(FAKE, repeats=1, stages=[0, 1]), "--slurm", "nodes=2", "--method", "grid"
    )
    document = command.end_well(6)  # each point, and its confirmation by two more repeats
    assert document["search"] is not None


def test_a_job_that_is_preempted_goes_on_after_the_urgent_one(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0, 1]), "--slurm", "partition=all")
    before = command.until_running(2)
    urgent = ("sbatch", "--partition=urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")
    number = re.findall(r"\d+", command.cluster.ask(*urgent))[0]
    command.cluster.until(lambda: command.cluster.jobs().get(number) == "COMPLETED", "the urgent job ran", 90)
    starts = command.until_running(2)
    assert set(starts) == set(before), "the same jobs run again"
    command.gate.touch()
    command.end_well(2)


@pytest.mark.parametrize("requeues", [True, False])
def test_a_node_that_dies_costs_no_result(command: Command, requeues: bool) -> None:
    """Where SLURM does not requeue the job itself, it is submitted once more."""
    cluster = command.cluster
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0, 1]), "--slurm", "timeout_min=5")
    victim, node = next(iter(command.until_running(2).items()))
    cluster.ask("scontrol", "update", f"JobId={victim}", f"Requeue={int(requeues)}")
    cluster.kill_node(node)
    try:
        command.gate.touch()
        cluster.until(lambda: cluster.jobs()[victim] not in ("RUNNING", "COMPLETING"), "it is missed", 120)
    finally:
        cluster.start_node(node)
    command.end_well(2)


def test_a_command_that_is_killed_leaves_nothing_that_its_successor_does_not_end(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0, 1, 2, 3]), "--slurm", "timeout_min=5")
    jobs = command.until_running(2)
    command.kill()
    assert set(command.running()) == set(jobs)
    command.start("sweep", "--resume", "last", "--slurm", "timeout_min=5")
    command.cluster.until(lambda: not set(jobs) & set(command.running()), "the old jobs are cancelled")
    command.gate.touch()
    command.end_well(4)


def test_what_slurm_refuses_is_said_in_its_words(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0]), "--slurm", "partition=nowhere")
    document = command.end(code=2)
    assert "invalid partition specified: nowhere" in document["error"]["message"]
    assert find_runs(command.home / "results") == []
