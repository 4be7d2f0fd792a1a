"""What a command asks of Ray, and what it makes of the answers: with GPUs, several nodes and lost ones."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from zbench.errors import UsageError, ZbenchError
from zbench.launch.cluster import ray_cluster, ray_place
from zbench.launch.cluster.node import joined
from zbench.launch.cluster.places import Node
from zbench.launch.cluster.ray_cluster import RayCluster
from zbench.launch.cluster.ray_place import RayPlace
from zbench.launch.executor import Attempt, Batch, RepeatTask
from zbench.record.record import Disturbance, Failure
from zbench.spec.trial import TrialSpec

from . import fake_ray
from .conftest import FAKES, changed, make_trial
from .fake_ray import FakeRay

NODES = (Node("first", "10.0.0.1", 8, 2), Node("second", "10.0.0.2", 8, 2))
NO_FILES: dict[str, bytes] = {}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return fake_ray.install(monkeypatch)


@pytest.fixture
def place(ray: FakeRay, tmp_path: Path) -> Callable[..., RayPlace]:
    return lambda count=1: RayPlace(NODES[:count], ("base", FAKES), tmp_path)


def clock(*times: float) -> SimpleNamespace:
    return SimpleNamespace(time=iter(times).__next__)


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


def test_a_trial_on_two_nodes_is_one_attempt(
    ray: FakeRay, place: Callable[..., RayPlace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_place, "time", clock(100.0, 105.0))
    held = place(2)
    held.begin(Batch((one := task(nodes=2),)), lambda *_: None)
    (meeting,) = ray.called("meeting_point")
    assert meeting.options["scheduling_strategy"] == 0, "the first node's ranks meet there"
    runs = ray.called("run")
    assert [call.arguments[1:] for call in runs] == [(n, 2, meeting.result, {}) for n in (0, 1)]
    runs[1].result.ready(([Attempt("ok", disturbance=Disturbance(0.5))], {"logs/rank1.log": b"there"}))
    assert held.ended() is None
    assert (tmp_path / "logs/rank1.log").read_bytes() == b"there"
    runs[0].result.ready(([Attempt("ok", result={"of": one.name})], NO_FILES))
    ray.called("progress")[0].result.value = []
    ray.answer = lambda call: []
    (attempt,) = held.ended() or [Attempt("crashed")]
    assert attempt.result == {"of": one.name}
    assert attempt.disturbance == Disturbance(0.5)
    assert attempt.seconds == 5.0
    assert attempt.placement is not None
    assert attempt.placement.nodes == [node.name for node in NODES]
    assert (attempt.placement.began, attempt.placement.ended) == (100.0, 105.0)
    assert ray.timeouts == {0}, "it never waits"


def test_a_heats_attempts_are_in_the_order_of_its_tasks(ray: FakeRay, place: Callable[..., RayPlace]) -> None:
    held = place()
    held.begin(Batch((task(), task())), lambda *_: None)
    ends = [Attempt("ok", seconds=1.0), Attempt("crashed", seconds=2.0)]
    (run,) = ray.called("run")
    assert (run.arguments[1:], ray.called("meeting_point")) == ((0, 1, None, {}), [])
    assert held.ended() is None
    run.result.ready((ends, NO_FILES))
    assert [(end.outcome, end.seconds) for end in held.ended() or ()] == [("ok", 1.0), ("crashed", 2.0)]
    assert ray.called("progress") == []


def test_progress_is_shown_once_and_a_reason_is_passed_on(
    ray: FakeRay, place: Callable[..., RayPlace]
) -> None:
    shown: list[int] = []

    def on_line(_: object, line: dict[str, Any]) -> str | None:
        shown.append(line["step"])
        return "too slow" if line["step"] == 2 else None

    held = place()
    held.begin(Batch((task(),)), on_line)
    assert held.ended() is None
    assert held.ended() is None, "the first question has no answer yet"
    (first,) = ray.called("progress")
    first.result.ready([{"step": 1}, {"step": 2}, {"step": 3}])
    assert held.ended() is None
    assert shown == [1, 2], "a task that is to end shows no more"
    (_, second) = ray.called("progress")
    assert (first.arguments, second.arguments) == ((None,), ("too slow",))
    (run,) = ray.called("run")
    run.result.ready(([Attempt("timeout")], NO_FILES))
    second.result.value = [{"step": 4}]  # not ready yet
    ray.answer = lambda call: []
    assert [attempt.outcome for attempt in held.ended() or ()] == ["timeout"]
    (third,) = ray.called("progress")[2:]
    assert third.arguments == (None,), "the reason is not for the next task"


def test_what_came_last_is_shown_when_a_task_has_ended(ray: FakeRay, place: Callable[..., RayPlace]) -> None:
    shown: list[int] = []
    held = place()
    held.begin(Batch((task(),)), lambda _, line: shown.append(line["step"]))
    assert held.ended() is None
    ray.called("progress")[0].result.value = [{"step": 1}]
    left = iter(([{"step": 2}], []))
    ray.answer = lambda call: next(left)
    ray.called("run")[0].result.ready(([Attempt("ok")], NO_FILES))
    assert held.ended() is not None
    assert shown == [1, 2]


def _error(kind: type[Exception], message: str, **more: object) -> Exception:
    error = kind(message)
    vars(error).update(more)
    return error


@pytest.mark.parametrize(
    ("error", "outcome", "says"),
    [
        (_error(fake_ray.OutOfMemoryError, "9 GB\nmore"), "oom", "ran out of memory: 9 GB"),
        (_error(fake_ray.RayError, "it was running low on memory"), "oom", "it was running low on memory"),
        (_error(fake_ray.RayError, "gone", preempted=True), "crashed", "was preempted"),
        (_error(fake_ray.RayError, "gone\nwith it"), "crashed", "was lost: gone"),
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


def test_a_workers_own_error_ends_the_command(ray: FakeRay, place: Callable[..., RayPlace]) -> None:
    held = place()
    held.begin(Batch((task(),)), lambda *_: None)
    ray.called("run")[0].result.ready(_error(fake_ray.RayTaskError, "", cause=OSError("no disk")))
    with pytest.raises(ZbenchError, match=r"^node 10\.0\.0\.1 \(first\): no disk$"):
        held.ended()


@pytest.mark.parametrize(
    ("seconds", "there", "waits"), [(9.0, False, False), (10.5, False, True), (10.5, True, False)]
)
def test_nodes_that_others_hold_for_ten_seconds_are_waited_for(
    ray: FakeRay,
    place: Callable[..., RayPlace],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    there: bool,
    waits: bool,
) -> None:
    monkeypatch.setattr(ray_place, "time", clock(100.0, 100.0 + seconds))
    held = place()
    ray.group.is_ready = there
    held.begin(Batch((task(),)), lambda *_: None)
    assert held.waits() is waits
    assert ray.timeouts <= {0}


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


def looks(kinds: dict[str, object]) -> Callable[[fake_ray.Call], object]:
    """Return what answers a look at a node: its kind, which is a text, or an error; None for no answer."""

    def answer(call: fake_ray.Call) -> object:
        kind = kinds[call.options["scheduling_strategy"][0]]
        return (kind, f"a machine of kind {kind}", "") if isinstance(kind, str) else kind

    return answer


def trial(**run: Any) -> TrialSpec:
    return task(**run).trial


def test_nodes_are_looked_at_once_each_on_itself(ray: FakeRay, cluster: RayCluster, tmp_path: Path) -> None:
    ray.node("head", memory=1e9)
    ray.node("one", CPU=2, memory=2e9)
    ray.node("two", CPU=2)
    ray.alive.append({**ray.alive[-1], "NodeID": "dead", "Alive": False})
    ray.answer = looks({"one": "same", "two": "same"})
    model = trial().workload
    own, known = (model.model_copy(update={"model": name}) for name in ("mine.part:Model", "hf:gpt2"))
    trials = [trial(), *(trial().model_copy(update={"workload": each}) for each in (own, known))]
    cluster.require(trials, tmp_path)
    assert [node.id for node in cluster.nodes()] == ["one", "two"]
    assert [node.memory for node in cluster.nodes()] == [2e9, float("inf")]
    first, second = ray.called("look")
    assert first.arguments[:2] == (str(tmp_path), ["fake", "mine.part"])
    quiet = {"num_cpus": 0, "max_retries": 0}  # a look takes no CPU from trials
    assert first.options == {**quiet, "scheduling_strategy": ("one", False)}
    assert second.options == {**quiet, "scheduling_strategy": ("two", False)}
    assert ray.timeouts <= {0.0, 60.0}


def test_a_node_that_comes_later_is_looked_at_and_left_alone_if_unlike(
    ray: FakeRay, cluster: RayCluster, told: list[str], tmp_path: Path
) -> None:
    kinds: dict[str, object] = {"one": "same", "two": "same", "three": "other", "four": "same", "five": None}
    kinds["six"] = fake_ray.RayError("no zbench")
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
        (["same", fake_ray.NodeDiedError("gone")], None),
        (["same", fake_ray.TaskUnschedulableError("gone")], None),
        ([None, None], r"within 60 s \(10\.0\.0\.0 \(node-0\), 10\.0\.0\.1 \(node-1\)\): other work"),
        (["same", fake_ray.RayError("a\nno zbench")], r"1 \(node-1\): .* start there \(no zbench\)"),
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
        ({"world_size": 2, "nodes": 1}, True),
        ({"world_size": 3, "nodes": 1}, False),  # automatic: there are two GPUs a node
        ({"world_size": 3, "nodes": 1, "device": "cuda"}, False),
        ({"world_size": 8, "nodes": 1, "device": "cpu"}, True),
        ({"world_size": 9, "nodes": 1, "device": "cpu"}, False),
        ({"world_size": 2, "nodes": 1, "device": "cpu", "threads_per_rank": 4}, True),
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


@pytest.mark.parametrize(
    ("gpus", "device", "fits"), [(0, "auto", True), (0, "cuda", False), (1, "auto", False), (1, "cpu", True)]
)
def test_nodes_without_gpus_have_room_by_their_cpus(
    ray: FakeRay, cluster: RayCluster, tmp_path: Path, gpus: int, device: str, fits: bool
) -> None:
    ray.answer = looks({"a": "small"})
    ray.node("a", CPU=2, GPU=gpus)
    if fits:
        cluster.require([trial(world_size=2, device=device)], tmp_path)
    else:
        with pytest.raises(UsageError, match=f"2 CPUs and {gpus} GPUs each; lower"):
            cluster.require([trial(world_size=2, device=device)], tmp_path)


def test_a_cluster_without_nodes_has_no_room(ray: FakeRay, cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no room: 0 nodes of one kind with 0 CPUs and 0 GPUs each; lower"):
        cluster.require([trial()], tmp_path)


@pytest.mark.parametrize("others", [[], ["python train.py"]])
def test_who_else_is_on_the_cluster_is_told_to_those_who_wait(
    ray: FakeRay,
    cluster: RayCluster,
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: list[str],
) -> None:
    jobs = [("zbench sweep", False, "own"), ("old.py", True, "2"), *((other, False, "3") for other in others)]
    state: Any = ModuleType("ray._private.state")
    state.jobs = lambda: [dict(zip(("Entrypoint", "IsDead", "JobID"), job, strict=True)) for job in jobs]
    monkeypatch.setitem(sys.modules, "ray._private.state", state)
    vars(ray)["get_runtime_context"] = lambda: SimpleNamespace(get_job_id=lambda: "own")
    ray.answer = looks({"a": "small"})
    ray.node("a", CPU=2)
    cluster.require([trial()], tmp_path)
    cluster.tell_of_wait(NODES)
    who = others[0] if others else "none that Ray tells of"
    assert told == [
        "waiting for 10.0.0.1 (first), 10.0.0.2 (second), which something else holds; other Ray jobs: " + who
    ]
