"""The code that runs on the nodes of a cluster, here in the test's own process, with fake workers."""

import os
import pickle
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.shared_processes import SharedProcesses
from zbench.errors import ZbenchError
from zbench.launch.cluster import node, slurm_node
from zbench.launch.cluster.node import NodeWorker, look, references_of, unpack, versions
from zbench.launch.executor import Attempt, Batch, ReferenceTask, RepeatTask
from zbench.launch.process.local import LocalExecutor
from zbench.record.environment import fingerprint, machine_facts

from .conftest import FAKES, make_trial


@pytest.fixture(autouse=True)
def executors(
    monkeypatch: pytest.MonkeyPatch, shared_processes: SharedProcesses
) -> Iterator[list[LocalExecutor]]:
    """Return those of all node workers; on a node they end with their process."""
    shared_processes.lend_by(monkeypatch)
    made: list[LocalExecutor] = []

    def make(*arguments: object, **settings: object) -> LocalExecutor:
        made.append(LocalExecutor(*arguments, **settings))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(node, "LocalExecutor", make)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    yield made
    for executor in made:
        executor.close()


@pytest.fixture
def worker(tmp_path: Path) -> NodeWorker:
    return NodeWorker(str(tmp_path), FAKES, "127.0.0.1")


def test_a_nodes_files_go_to_the_command_and_leave_the_node(worker: NodeWorker, tmp_path: Path) -> None:
    reference = tmp_path / "run-1" / "references" / "key.safetensors"
    (attempt,), files = worker.run(Batch((ReferenceTask(make_trial(), reference),)), 0, 1, None, {})
    assert attempt.outcome == "ok"
    assert not reference.exists()
    unpack(files, tmp_path / "run-1")
    assert reference.read_text() == "reference"

    task = RepeatTask(make_trial(do="judge"), 0, reference, trace=True)
    (judged,), files = worker.run(Batch((task,)), 0, 1, None, references_of(Batch((task,))))
    assert judged.result is not None
    assert judged.result["correctness"]["verdict"] == "identical"
    assert [*files] == [f"traces/{task.trial.trial_id}.trace.json"]
    (again,), _ = worker.run(Batch((task,)), 0, 1, None, {})
    assert again.outcome != "ok", "the reference is not kept on the node"


def test_ranks_are_not_pinned_to_a_part_of_a_nodes_cpus(tmp_path: Path) -> None:
    worker = NodeWorker(str(tmp_path), FAKES, "127.0.0.1", cpus=1)
    task = RepeatTask(make_trial(do="describe"))
    _, files = worker.run(Batch((task,)), 0, 1, None, {})
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert f" cpus={cores} " in files[f"logs/{task.name}/rank0.log"].decode()


def test_a_node_is_described_and_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    kind, description, problem = look(str(tmp_path), ["mine.part", "json.decoder"], versions())
    assert (kind, problem) == (fingerprint(machine_facts()), "")
    assert description
    assert look(str(tmp_path), ["mine", "not_there.part"], versions())[2].startswith(
        "cannot import not_there.part; put it on a path that all nodes share"
    )
    assert "install the same" in look(str(tmp_path), [], versions() | {"torch": "0.1"})[2]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Attempt, dict[str, bytes]]]:
    """Return what runs a job's process for one of its nodes, and returns what it leaves for the command."""
    pytest.importorskip("submitit")
    inbox = tmp_path / "inbox"
    inbox.mkdir()

    def run(
        task: RepeatTask, rank: int = 0, nodes: int = 1, start: str = "0"
    ) -> tuple[Attempt, dict[str, bytes]]:
        place = Namespace(job_id="7", global_rank=rank, hostnames=["localhost"] * nodes)
        monkeypatch.setattr("submitit.JobEnvironment", lambda: place)
        monkeypatch.setenv("SLURM_RESTART_COUNT", start)
        (inbox / "task").write_bytes(pickle.dumps((task, nodes)))
        slurm_node.serve(inbox, str(tmp_path), FAKES)
        ended: tuple[Attempt, dict[str, bytes]] = pickle.loads(
            (inbox / f"7-{start}" / f"end-{rank}").read_bytes()
        )
        return ended

    return run


def test_a_jobs_first_node_says_where_its_nodes_meet(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = RepeatTask(make_trial(do="describe", rank="all"))
    monkeypatch.setattr(slurm_node, "_MEETING_SECONDS", 0.05)
    monkeypatch.setattr(slurm_node, "_POLL_SECONDS", 0.01)
    with pytest.raises(ZbenchError, match=r"has not written .*meeting within 0 s"):
        serve(task, rank=1, nodes=2)
    first, files = serve(task, rank=0, nodes=2)
    assert first.result is not None
    assert [*files] == [f"logs/{task.name}/rank0.log"]
    assert (tmp_path / "inbox" / "7-0" / "meeting").read_text().startswith("tcp://")
    second, files = serve(task, rank=1, nodes=2)
    assert second.outcome == "ok"
    assert [*files] == [f"logs/{task.name}/rank1.log"]
