"""What a command asks of Ray, and what it makes of the answers: with GPUs, several nodes and lost ones."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.launch.cluster import ray_cluster
from zbench.launch.cluster.node import joined
from zbench.launch.cluster.places import Node
from zbench.launch.cluster.ray_cluster import RayCluster
from zbench.launch.cluster.ray_place import RayPlace
from zbench.launch.executor import Attempt, Batch, RepeatTask
from zbench.record.record import Failure
from zbench.spec.trial import TrialSpec

from .conftest import FAKES, changed, make_trial


class RayError(Exception):
    """As Ray's."""


class RayTaskError(RayError):
    """What a worker raised."""

    cause: Exception


class OutOfMemoryError(RayError):
    """A node's memory was full."""


class TaskUnschedulableError(RayError):
    """The node of a task has gone."""


class NodeDiedError(RayError):
    """The node of a task has gone, too."""


@dataclass(eq=False)
class Reference:
    """What a call returned. value: an exception is raised where it is asked for."""

    value: Any = None
    is_ready: bool = False

    def ready(self, value: Any) -> None:
        """Answer the call."""
        self.value, self.is_ready = value, True


@dataclass
class Call:
    """A call of a function or method on a node."""

    function: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Reference = field(default_factory=Reference)


class FakeRay(ModuleType):
    """The module `ray`. alive: what `ray.nodes()` tells. calls: of functions and methods, in order."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.alive: list[dict[str, Any]] = []
        self.calls: list[Call] = []
        self.groups: list[tuple[Sequence[dict[str, float]], str, Sequence[dict[str, str]]]] = []
        self.timeouts: set[float] = set()
        self.killed: list[object] = []
        self.group = Reference()
        self.answer: Callable[[Call], Any] = lambda call: None
        errors = (RayError, RayTaskError, TaskUnschedulableError, NodeDiedError)
        self.exceptions = SimpleNamespace(**{error.__name__: error for error in errors})
        self.util = SimpleNamespace(placement_group=self._placement_group, remove_placement_group=self.kill)

    def node(self, name: str, **resources: float) -> None:
        """Add a node that is there."""
        about = {"NodeID": name, "NodeManagerAddress": f"10.0.0.{len(self.alive)}", "Alive": True}
        self.alive.append({**about, "Resources": resources})

    def nodes(self) -> list[dict[str, Any]]:
        return self.alive

    def kill(self, one: object) -> None:
        self.killed.append(one)

    def put(self, value: object) -> object:
        return value

    def remote(self, function: Any) -> SimpleNamespace:
        """Return what takes options, and then arguments: a worker has methods, a function has a result."""

        def options(**chosen: Any) -> SimpleNamespace:
            def begin(*arguments: Any) -> object:
                if isinstance(function, type):
                    return Worker(self, (arguments, chosen))
                return self.call(function.__name__, arguments, chosen)

            return SimpleNamespace(remote=begin)

        return SimpleNamespace(options=options)

    def call(self, function: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Reference:
        call = Call(function, arguments, options)
        self.calls.append(call)
        if (value := self.answer(call)) is not None:
            call.result.ready(value)
        return call.result

    def wait(
        self, references: list[Reference], *, num_returns: int = 1, timeout: float
    ) -> tuple[list[Reference], list[Reference]]:
        assert 1 <= num_returns <= len(references), "Ray refuses any other number"
        self.timeouts.add(timeout)
        ready = [one for one in references if one.is_ready][:num_returns]
        return ready, [one for one in references if one not in ready]

    def get(self, reference: Reference) -> Any:
        assert reference.value is not None, "Ray waits for ever"
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def called(self, function: str) -> list[Call]:
        """Return the calls of a function so far."""
        return [call for call in self.calls if call.function == function]

    def _placement_group(
        self,
        bundles: Sequence[dict[str, float]],
        *,
        strategy: str,
        bundle_label_selector: Sequence[dict[str, str]],
    ) -> SimpleNamespace:
        self.groups.append((bundles, strategy, bundle_label_selector))
        return SimpleNamespace(ready=lambda: self.group)


class Worker:
    """An actor. made: its arguments and options."""

    def __init__(self, ray: FakeRay, made: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self._ray, self._options = ray, made[1]
        ray.calls.append(Call("worker", *made))

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *arguments: self._ray.call(name, arguments, self._options))


def install(patch: pytest.MonkeyPatch) -> FakeRay:
    """Have `ray` be a mock."""
    ray = FakeRay()
    strategies: Any = ModuleType("ray.util.scheduling_strategies")
    strategies.PlacementGroupSchedulingStrategy = lambda group, number: number
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: (node, soft)
    patch.setitem(sys.modules, "ray", ray)
    patch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    return ray


NODES = (Node("first", "10.0.0.1", 8, 2), Node("second", "10.0.0.2", 8, 2))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return install(monkeypatch)


@pytest.fixture
def place(ray: FakeRay, tmp_path: Path) -> Callable[..., RayPlace]:
    return lambda count=1: RayPlace(NODES[:count], ("base", FAKES), tmp_path)


def task(**run: Any) -> RepeatTask:
    return RepeatTask(changed(make_trial(), **run))


@pytest.mark.parametrize(("count", "strategy"), [(1, "STRICT_PACK"), (2, "STRICT_SPREAD")])
def test_nodes_are_asked_for_whole(
    ray: FakeRay, place: Callable[..., RayPlace], count: int, strategy: str
) -> None:
    held = place(count)
    bundles = [{"CPU": 8, "GPU": 2}] * count
    assert ray.groups == [(bundles, strategy, [{"ray.io/node-id": node.id} for node in NODES[:count]])]
    workers = ray.called("worker")
    assert [call.arguments for call in workers] == [("base", FAKES, n.address, 8) for n in NODES[:count]]
    each = {"num_cpus": 8, "num_gpus": 2, "max_concurrency": 2}  # one to run a task, and one to ask about it
    assert [call.options for call in workers] == [
        {"scheduling_strategy": number, **each} for number in range(count)
    ]
    assert not held.is_lost
    held.close()
    assert len(ray.killed) == count + 1


def _error(kind: type[Exception], message: str, **more: object) -> Exception:
    error = kind(message)
    vars(error).update(more)
    return error


@pytest.mark.parametrize(
    ("error", "outcome", "says"),
    [
        (_error(OutOfMemoryError, "9 GB\nmore"), "oom", "ran out of memory: 9 GB"),
        (_error(RayError, "gone", preempted=True), "crashed", "was preempted"),
        (_error(RayError, "gone\nwith it"), "crashed", "was lost: gone"),
    ],
)
def test_tasks_of_a_lost_node_say_why_and_the_place_is_lost(
    ray: FakeRay, place: Callable[..., RayPlace], error: Exception, outcome: str, says: str
) -> None:
    held = place()
    held.begin(Batch((task(), task())), lambda *_: None)
    ray.called("run")[0].result.ready(error)
    attempts = held.ended() or []
    assert [attempt.outcome for attempt in attempts] == [outcome] * 2
    for attempt in attempts:
        assert attempt.error is not None
        assert attempt.error.message.endswith(says)
        assert attempt.error.message.startswith("node 10.0.0.1 (first)")
    assert held.is_lost


def test_the_likely_cause_of_two_failures_is_told() -> None:
    peer = Attempt("crashed", Failure("crashed", "Connection closed by peer"))
    cause = Attempt("oom", Failure("oom", "out of memory"))
    late = Attempt("timeout", Failure("timeout", "took too long"))
    assert joined({3: [Attempt("ok")], 2: [cause], 1: [late], 0: [peer]}) == [cause]
    assert joined({0: [late, cause], 1: [late, Attempt("ok")], 2: [peer, peer]}) == [late, cause]


# --- the cluster


@pytest.fixture
def cluster(ray: FakeRay, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> RayCluster:
    monkeypatch.setattr(ray_cluster, "connect", lambda address: ray)
    return RayCluster("somewhere:1", told.append)


@pytest.fixture
def told() -> list[str]:
    return []


def looks(kinds: dict[str, object]) -> Callable[[Call], object]:
    """Return what answers a look at a node: its kind, which is a text, or an error; None for no answer."""

    def answer(call: Call) -> object:
        kind = kinds[call.options["scheduling_strategy"][0]]
        return (kind, f"a machine of kind {kind}", "") if isinstance(kind, str) else kind

    return answer


def trial(**run: Any) -> TrialSpec:
    return task(**run).trial


def test_a_node_that_comes_later_is_looked_at_and_left_alone_if_unlike(
    ray: FakeRay, cluster: RayCluster, told: list[str], tmp_path: Path
) -> None:
    kinds: dict[str, object] = {"one": "same", "two": "same", "three": "other", "four": "same", "five": None}
    kinds["six"] = RayError("no zbench")
    ray.answer = looks(kinds)
    ray.node("one", CPU=2)
    cluster.require([trial(world_size=2)], tmp_path)
    for name in ("two", "three", "four"):
        ray.node(name, CPU=2 if name != "four" else 1)
    ray.node("five", CPU=2)
    ray.node("six", CPU=2)
    assert [node.id for node in cluster.nodes()] == ["one", "two"]
    assert told == [
        "node 10.0.0.2 (three) has come and is left alone: a machine of kind other",
        "node 10.0.0.3 (four) has come and is left alone: a machine of kind same",
        "node 10.0.0.5 (six) has come and is left alone: zbench does not start there (no zbench); "
        "install it as here",
    ]
    ray.called("look")[-2].result.ready(("same", "late", ""))
    assert [node.id for node in cluster.nodes()] == ["one", "two", "five"]
    assert len(ray.called("look")) == 6
    assert ray.timeouts == {0.0, 60.0}, "only the first look waits"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (["same", None], None),
        (["same", TaskUnschedulableError("gone")], None),
        ([None, None], r"within 60 s \(10\.0\.0\.0 \(node-0\), 10\.0\.0\.1 \(node-1\)\): other work"),
        (["same", RayError("a\nno zbench")], r"1 \(node-1\): .* start there \(no zbench\)"),
        (["same", ("other", "it", "has torch 0.1")], r"node 10\.0\.0\.1 \(node-1\): has torch 0\.1"),
    ],
)
def test_what_a_node_does_not_answer_or_lacks(
    ray: FakeRay, cluster: RayCluster, told: list[str], tmp_path: Path, answers: list[object], says: str
) -> None:
    ray.answer = looks({f"node-{n}": answer for n, answer in enumerate(answers)})
    for n in range(len(answers)):
        ray.node(f"node-{n}", CPU=2)
    if says is None:
        cluster.require([trial()], tmp_path)
        assert [node.id for node in cluster.nodes()] == ["node-0"]
        assert told == []
    else:
        with pytest.raises(UsageError, match=says):
            cluster.require([trial()], tmp_path)


@pytest.mark.parametrize(
    ("run", "fits"),
    [
        ({"world_size": 4, "nodes": 2}, True),
        ({"world_size": 8, "nodes": 4}, False),
        ({"world_size": 3, "nodes": 1}, False),  # automatic: there are two GPUs a node
        ({"world_size": 8, "nodes": 1, "device": "cpu"}, True),
        ({"world_size": 9, "nodes": 1, "device": "cpu"}, False),
        ({"world_size": 2, "nodes": 1, "device": "cpu", "threads_per_rank": 5}, False),
        ({"world_size": 2, "nodes": 1, "device": "cuda", "threads_per_rank": 5}, True),
    ],
)
def test_room_is_what_the_nodes_of_most_frequent_kind_have(
    ray: FakeRay, cluster: RayCluster, told: list[str], tmp_path: Path, run: dict[str, object], fits: bool
) -> None:
    ray.answer = looks({"a": "big", "b": "common", "c": "common"})
    ray.node("a", CPU=64, GPU=8)
    ray.node("b", CPU=8, GPU=2)
    ray.node("c", CPU=8, GPU=2)
    if fits:
        cluster.require([trial(**run)], tmp_path)
        assert told == ["left alone; node 10.0.0.0 (a) is another kind: a machine of kind big"]
    else:
        with pytest.raises(
            UsageError, match=r"no room: 2 nodes of one kind with 8 CPUs and 2 GPUs each; node 10"
        ):
            cluster.require([trial(**run)], tmp_path)
