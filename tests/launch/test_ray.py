"""Trials on the nodes of a Ray cluster, with fake workers: one small cluster for the whole file.

What kills a node comes last: the cluster looks for it for some seconds.
"""

import os
import re
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.world import run
from zbench.errors import UsageError
from zbench.launch.cluster import ray_cluster, ray_place
from zbench.launch.cluster.places import PlacesExecutor
from zbench.launch.cluster.ray_cluster import RayCluster
from zbench.launch.executor import Batch, Executor, RepeatTask
from zbench.launch.sweep import SweepPlan, run_sweep
from zbench.record.store import RunDirectory
from zbench.spec.expand import Expansion

from .conftest import FAKES, changed, make_trial
from .executor_suite import ProcessSuite

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the nodes' address is this machine's loopback
}
os.environ.update(ENVIRONMENT)  # Ray reads it when it is imported
_NODE = {"object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1", "include_dashboard": False}

ray = pytest.importorskip("ray", reason='needs Ray: pip install -e ".[test]"')
HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]


class RayNodes:
    """The nodes; `address` is what `--ray` takes."""

    def __init__(self, count: int) -> None:
        from ray._private import node
        from ray.cluster_utils import Cluster

        # Ray gives a node 30 s to start, which a busy machine does not always do
        vars(node)["time"] = SimpleNamespace(**vars(time) | {"monotonic": lambda: 0.0})
        self._cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **_NODE})
        self.address: str = self._cluster.address
        for _ in range(count):
            self.add()
        self._cluster.wait_for_nodes()

    def add(self) -> None:
        """Start another node."""
        self._cluster.add_node(wait=False, num_cpus=1, **_NODE)

    def names(self) -> list[str]:
        """Return the identities of all nodes but the head, the oldest first."""
        return [node.node_id for node in self._cluster.worker_nodes]

    def kill(self, name: str) -> None:
        """Kill a node and all that runs there, as a power cut does."""
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == name]
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End the cluster."""
        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def running_nodes(count: int) -> Iterator[RayNodes]:
    """Run a cluster of so many nodes."""
    nodes = RayNodes(count)
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(ROOT)]), prepend=os.pathsep)
        patch.setattr(ray_cluster, "_LOOK_SECONDS", 600.0)  # other tests may keep this machine busy
        with running_nodes(2) as running:
            yield running


@pytest.fixture
def cluster(nodes: RayNodes, tmp_path: Path) -> RayCluster:
    cluster = RayCluster(nodes.address)
    cluster.require([make_trial(world_size=1)], tmp_path)
    return cluster


@pytest.fixture(scope="class")
def shared(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacesExecutor]:
    run_dir = tmp_path_factory.mktemp("ray") / "run-1"
    cluster = RayCluster(nodes.address)
    cluster.require([make_trial(world_size=1)], run_dir)
    executor = PlacesExecutor(run_dir, run_dir.parent, cluster, targets=FAKES)
    yield executor
    executor.close()


@pytest.mark.check
class TestRay(ProcessSuite):
    """Nodes of a Ray cluster: one executor for all, for each worker starts a server."""

    @pytest.fixture
    def run_dir(self, shared: PlacesExecutor) -> Path:
        shutil.rmtree(shared.run_dir, ignore_errors=True)
        shared.run_dir.mkdir()
        return shared.run_dir

    @pytest.fixture
    def executor(self, shared: Executor, run_dir: Path) -> Executor:
        return shared

    @pytest.mark.parametrize(
        ("rank", "do", "message"),
        [
            (0, "describe", ""),
            (1, "crash", "rank 1: RuntimeError: the model fell over"),
            (1, "die", "rank 1 was killed"),
        ],
    )
    def test_ranks_on_two_nodes_are_one_trial(
        self, executor: Executor, run_dir: Path, rank: int, do: str, message: str
    ) -> None:
        task = RepeatTask(changed(make_trial(do=do, rank=rank), nodes=2))
        attempt = run(executor, task)
        assert attempt.placement is not None
        assert len(attempt.placement.nodes) == 2
        assert (message in attempt.error.message) if attempt.error else attempt.result is not None
        assert (attempt.error is None) == (do == "describe")
        log = run_dir / "logs" / task.name / f"rank{rank}.log"
        assert log.exists(), "what a rank wrote on its node is in the run directory"


@pytest.mark.check
@pytest.mark.parametrize(
    ("run", "model", "message"),
    [
        ({"world_size": 8, "nodes": 4}, "mlp", "the cluster has no room: 2 nodes of one kind with 1 CPUs"),
        ({"world_size": 3, "nodes": 2}, "mlp", "3 ranks cannot be shared out evenly among 2 nodes"),
        ({}, "not_there:model", "cannot import not_there; put it on a path that all nodes share"),
    ],
)
def test_what_the_cluster_cannot_run_is_refused_before_anything_runs(
    nodes: RayNodes, tmp_path: Path, run: dict[str, object], model: str, message: str
) -> None:
    trial = changed(make_trial(world_size=1), **run)
    trial = trial.model_copy(update={"workload": trial.workload.model_copy(update={"model": model})})
    with pytest.raises(UsageError, match=message):
        RayCluster(nodes.address).require([trial], tmp_path)


def test_other_versions_on_a_node_are_refused_by_name(
    nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "versions", lambda: {"zbench": "9.9", "torch": "2.13.0"})
    with pytest.raises(
        UsageError, match=r"node 127\.0\.0\.1 \(.*\): has \{'zbench': '.*'9\.9'.*; install the same"
    ):
        RayCluster(nodes.address).require([make_trial(world_size=1)], tmp_path)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "refused; start zbench on a node"),
        (b"", "timed out; start zbench on a node"),
        (b"HTTP/1.1 400 Bad Request", "what answers there is not Ray's head; start zbench on a node"),
    ],
)
def test_an_address_where_ray_does_not_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, message: str
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_cluster, "_CONNECT_SECONDS", 0.5 if answer == b"" else 60.0)
    heard: list[bytes] = []
    with socket.create_server(("", 0)) as server:
        port = 1 if answer is None else server.getsockname()[1]

        def serve() -> None:
            with suppress(OSError):  # it is closed, or reset
                connection, _ = server.accept()
                connection.sendall(answer or b"")
                heard.append(connection.recv(100))
                connection.recv(100)  # until it is closed

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        with pytest.raises(UsageError, match=rf"--ray 127\.0\.0\.1:{port}: .*{message}"):
            ray_cluster.connect(f"127.0.0.1:{port}")
        if answer is not None:
            serving.join()
            assert heard == [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"]


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'--ray needs Ray; run: pip install "zbench\[ray\]"') as refused:
        RayCluster("auto").require([make_trial()], tmp_path)
    assert refused.value.exit_code == 2


@pytest.mark.check
def test_a_node_that_something_else_holds_is_waited_for_with_one_notice(
    nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(ray_place, "_HELD_SECONDS", 0.5)
    cluster = RayCluster(nodes.address, told.append)
    task = RepeatTask(make_trial(world_size=1))
    cluster.require([task.trial], tmp_path)
    held = ray.util.placement_group([{"CPU": 1}] * 2)
    assert held.wait(30)
    executor = PlacesExecutor(tmp_path, tmp_path, cluster, targets=FAKES)
    executor.submit(Batch((task,)), lambda *_: None)
    while not told:
        executor._advance()
    ray.util.remove_placement_group(held)
    assert executor.next_ended()[2].outcome == "ok"
    executor.close()
    (text,) = told
    assert re.match(r"waiting for 127\.0\.0\.1 \(.*, which something else holds", text)


@pytest.mark.check
def test_another_version_of_ray_or_python_is_told_with_both(
    nodes: RayNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9\n    Python: 3.9")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UsageError, match=r"started with: Ray: 2\.9 Python: 3\.9; install the same here"):
        ray_cluster.connect(nodes.address)


@pytest.mark.check
def test_a_heat_takes_its_turns_on_one_node_while_the_other_node_has_its_own(
    nodes: RayNodes, cluster: RayCluster, tmp_path: Path
) -> None:
    keys: dict[str, object] = {"repeats": 1, "steps": 8, "heat": 2, "yardstick": "none"}
    trials = [changed(make_trial(stage=stage, world_size=1, sleep=0.5), **keys) for stage in range(4)]
    directory = RunDirectory.create(tmp_path, "sweep", spec={}, environment={})
    make = lambda: PlacesExecutor(directory.path, tmp_path, cluster, targets=FAKES)  # noqa: E731
    run_sweep(SweepPlan(Expansion(trials, [])), directory, make)
    records = directory.records()
    assert [one.outcome for one in records] == ["ok"] * 4
    assert {one.correctness.verdict for one in records if one.correctness} == {"identical"}
    shared = Counter((*one.placement.nodes, one.placement.began) for one in records if one.placement)
    assert [*shared.values()] == [2, 2]
    assert len({node for node, _ in shared}) == 2


@pytest.mark.check
def test_two_trials_at_once_never_share_a_node_and_a_node_that_dies_costs_no_record(
    nodes: RayNodes, cluster: RayCluster, tmp_path: Path
) -> None:
    keys: dict[str, object] = {"repeats": 2, "order": "rounds"}
    trials = [changed(make_trial(stage=stage, world_size=1, sleep=1.0), **keys) for stage in range(3)]
    directory = RunDirectory.create(tmp_path, "sweep", spec={}, environment={})
    killed = False

    def kill(event: object) -> None:
        nonlocal killed
        if not killed and len(directory.records()) == 1:
            killed = True
            nodes.add()
            nodes.kill(nodes.names()[0])

    make = lambda: PlacesExecutor(directory.path, tmp_path, cluster, targets=FAKES)  # noqa: E731
    run_sweep(SweepPlan(Expansion(trials, [])), directory, make, on_event=kill)
    records = directory.records()
    assert sorted((one.trial_id, one.repeat) for one in records) == sorted(
        (trial.trial_id, repeat) for trial in trials for repeat in (0, 1)
    )
    assert {one.outcome for one in records} == {"ok"}
    spans = [one.placement for one in records if one.placement is not None]
    assert len(spans) == len(records)
    for a in spans:
        for b in spans:
            together = a is not b and a.began < b.ended and b.began < a.ended
            assert not (together and set(a.nodes) & set(b.nodes)), "they were on one node at once"
