"""What a command asks of SLURM and of the workers of job steps, and what it makes of their answers."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zbench.launch.cluster import slurm, slurm_steps
from zbench.launch.cluster.slurm import SlurmExecutor
from zbench.launch.cluster.slurm_jobs import SlurmOptions
from zbench.launch.cluster.slurm_node import write
from zbench.launch.cluster.slurm_steps import SlurmAllocation
from zbench.launch.executor import Attempt, Batch, ReferenceTask, RepeatTask
from zbench.record.record import Disturbance, Failure

from .conftest import FAKES, changed, make_trial


def repeat(**run: Any) -> RepeatTask:
    return RepeatTask(changed(make_trial(), **run))


@pytest.mark.parametrize(
    ("variables", "cpus", "gpus"),
    [({"SLURM_CPUS_ON_NODE": "7", "SLURM_GPUS_ON_NODE": "4"}, 7, 4), ({}, 3, 0)],
)
def test_an_allocations_nodes_are_as_slurm_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cpus: int, gpus: int
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], **_: object) -> SimpleNamespace:
        asked.append(words)
        return SimpleNamespace(stdout="a1\na2\n")

    for name in ("SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**variables, "SLURM_JOB_NODELIST": "a[1-2]"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slurm_steps.subprocess, "run", run)
    monkeypatch.setattr(slurm_steps.os, "sched_getaffinity", lambda pid: {0, 1, 2} if pid == 0 else {0})
    nodes = SlurmAllocation().nodes()
    assert asked == [["scontrol", "show", "hostnames", "a[1-2]"]]
    assert [(node.id, node.cpus, node.gpus) for node in nodes] == [("a1", cpus, gpus), ("a2", cpus, gpus)]


# --- jobs


class FakeCluster:
    """Jobs in states that the test says. submitted: settings and number of jobs of each array."""

    made: "FakeCluster"

    def __init__(self, options: SlurmOptions, name: str, folder: Path) -> None:
        FakeCluster.made = self
        self.of = name, folder
        self.states: dict[str, str] = {}
        self.submitted: list[tuple[dict[str, Any], int]] = []
        self.cancelled: list[tuple[list[str], bool]] = []
        self.asks: Callable[[], None] = lambda: None

    def submit(self, calls: Sequence[Any], settings: dict[str, Any]) -> list[SimpleNamespace]:
        self.submitted.append((settings, len(calls)))
        self.calls = calls
        first = len(self.states)
        jobs = [SimpleNamespace(job_id=f"7_{first + n}", inbox=call.args[0]) for n, call in enumerate(calls)]
        for job in jobs:
            self.states[job.job_id] = "PENDING"
            job.paths = SimpleNamespace(folder=job.inbox.parent)
        return jobs

    def state(self, job: SimpleNamespace) -> str:
        self.asks()
        return self.states[job.job_id]

    def cancel(self, jobs: Sequence[SimpleNamespace], *, only_waiting: bool = False) -> None:
        self.cancelled.append(([job.job_id for job in jobs], only_waiting))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SlurmExecutor]:
    """Return what makes an executor over fake jobs, in a time that passes with each wait."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now, time_ns=iter(range(99)).__next__)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(slurm, "time", clock)
    monkeypatch.setattr(slurm, "Cluster", FakeCluster)
    monkeypatch.setattr(slurm, "_Job", lambda *given, make=slurm._Job: make(*given, began=clock.now))

    def make(*options: str) -> SlurmExecutor:
        return SlurmExecutor(tmp_path, tmp_path, SlurmOptions.parse(options), targets=FAKES)

    return make


def test_a_job_has_its_nodes_one_process_each_and_time_to_start(
    jobs: Callable[..., SlurmExecutor], tmp_path: Path
) -> None:
    executor = jobs("nodes=2", "partition=gpu")
    assert FakeCluster.made.of == (f"zbench-{tmp_path.name}", tmp_path / "logs" / "slurm")
    tasks = [repeat(world_size=4, timeout=600.0), repeat(world_size=4, timeout=600.0), repeat(world_size=2)]
    tasks.append(ReferenceTask(tasks[0].trial, tmp_path / "reference"))  # type: ignore[arg-type]
    handles = [executor.submit(Batch((task,)), lambda *_: None) for task in tasks]
    FakeCluster.made.asks = lambda: FakeCluster.made.states.update({"7_2": "NODE_FAIL"})
    handle, _, attempt = executor.next_ended()
    assert handle == handles[2]
    assert attempt.error == Failure("killed", "the job 7_2 ended as NODE_FAIL", "logs/slurm")
    settings = [one for one, _ in FakeCluster.made.submitted]
    assert [count for _, count in FakeCluster.made.submitted] == [2, 1, 1], "equal ones are one array"
    assert [one["timeout_min"] for one in settings] == [12, 4, 162]
    assert [one["nodes"] for one in settings] == [2, 2, 1]
    for one in settings:
        assert (one["slurm_exclusive"], one["slurm_partition"], one["tasks_per_node"]) == (True, "gpu", 1)
        assert "cpus_per_task" not in one
    executor.close()
    assert FakeCluster.made.cancelled == [(["7_0", "7_1", "7_3"], False)]


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["exclusive=no"], "cpus_per_task", 4),
        (["exclusive=no", "cpus_per_task=3"], "cpus_per_task", 12),
        (["gpus_per_task=2"], "slurm_gpus_per_task", 8),
    ],
)
def test_what_a_rank_has_is_asked_for_all_ranks_of_a_node(
    jobs: Callable[..., SlurmExecutor], options: list[str], key: str, value: int
) -> None:
    executor = jobs(*options)
    executor.submit(Batch((repeat(world_size=4),)), lambda *_: None)
    executor._send()
    ((settings, _),) = FakeCluster.made.submitted
    assert settings[key] == value
    assert [call.args[1:] for call in FakeCluster.made.calls] == [(str(executor._run_dir), FAKES)]


@pytest.mark.parametrize(
    ("state", "waits", "outcome", "kind"),
    [
        ("COMPLETED", 15.0, "crashed", "crashed"),  # another node's files may be seen late
        ("OUT_OF_MEMORY", 0.0, "oom", "oom"),
        ("TIMEOUT", 0.0, "timeout", "timeout"),
        ("PREEMPTED", 0.0, "crashed", "killed"),
    ],
)
def test_a_job_that_left_nothing_ended_as_slurm_says(
    jobs: Callable[..., SlurmExecutor], state: str, waits: float, outcome: str, kind: str
) -> None:
    executor = jobs()
    executor.submit(Batch((repeat(),)), lambda *_: None)
    seen: list[str] = []

    def ask() -> None:
        seen.append("")
        FakeCluster.made.states["7_0"] = state if len(seen) > 3 else "RUNNING"

    FakeCluster.made.asks = ask
    _, _, attempt = executor.next_ended()
    assert attempt.error is not None
    assert (attempt.outcome, attempt.error.kind) == (outcome, kind)
    assert attempt.seconds == 3.0 + waits + (1.0 if waits else 0.0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_ended_when_all_its_nodes_have_said_so(
    jobs: Callable[..., SlurmExecutor], tmp_path: Path, nodes: int
) -> None:
    executor = jobs(f"nodes={nodes}")
    executor.submit(Batch((repeat(),)), lambda *_: None)
    executor._send()
    (job,) = executor._jobs.values()
    home = job.inbox / "7_0-1"  # its second start: an earlier one says nothing
    (job.inbox / "7_0-0").mkdir()
    home.mkdir()
    left = [Attempt("ok", result={"of": 0}), Attempt("ok", disturbance=Disturbance(0.5))][:nodes]
    FakeCluster.made.states["7_0"] = "COMPLETED"
    (job.inbox.parent / "7_0_submitted.pkl").touch()
    for number, attempt in enumerate(left):
        assert not executor._has_ended(job)
        write(home / f"end-{number}", pickle.dumps((attempt, {f"logs/{number}": b""})))
    _, _, attempt = executor.next_ended()
    assert attempt.result == {"of": 0}
    assert all((tmp_path / f"logs/{number}").exists() for number in range(nodes))
    assert list((tmp_path / "logs" / "slurm").iterdir()) == [], "nothing is left of the job"


@pytest.mark.parametrize(("state", "goes"), [("PENDING", True), ("CANCELLED", True), ("RUNNING", False)])
def test_only_a_job_that_waits_can_be_withdrawn(
    jobs: Callable[..., SlurmExecutor], state: str, goes: bool
) -> None:
    executor = jobs()
    handle = executor.submit(Batch((repeat(),)), lambda *_: None)
    executor._send()
    FakeCluster.made.states["7_0"] = state
    assert executor.withdraw(handle) is goes
    assert FakeCluster.made.cancelled == [(["7_0"], True)]
    assert (handle in executor._jobs) is not goes
