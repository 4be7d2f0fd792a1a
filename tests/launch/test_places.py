"""A queue over places that are mocks in a time of their own, and are lost as Ray's are."""

import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.world import OptionsScript, failed, run
from zbench.errors import TrialsFailedError
from zbench.launch.cluster import places
from zbench.launch.cluster.places import Node, Place, PlacesExecutor
from zbench.launch.executor import DEFAULT_TARGETS, Attempt, Batch, OnLine, ReferenceTask, RepeatTask
from zbench.launch.sweep import SweepPlan, run_sweep
from zbench.record.record import Placement
from zbench.record.store import RunDirectory
from zbench.spec.expand import Expansion

from .conftest import make_trial


class Cluster:
    """Nodes and time. Each task takes `seconds`; one that loses its nodes has others in their place.

    loses: whether a task does, by its name; one in 30 if not said otherwise.
    """

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.seconds = 1.0, 3.0
        self.lot = random.Random(1)
        self.made = 0
        self.there = [self.node() for _ in range(count)]
        self.busy: list[int] = []
        self.places: list[FakePlace] = []
        self.script = OptionsScript()
        self.loses: Callable[[str], bool] = lambda name: self.lot.random() < 1 / 30
        self.workers: list[object] = []
        self.told: list[Node] = []
        self.looks = 0

    def node(self) -> Node:
        self.made += 1
        return Node(f"{self.made:08}", f"10.0.0.{self.made}", 1, 0)

    def nodes(self) -> list[Node]:
        self.looks += 1
        return list(self.there)

    def place(self, nodes: list[Node], worker: object, run_dir: Path) -> "FakePlace":
        self.workers.append(worker)
        return FakePlace(nodes)

    def tell_of_wait(self, nodes: list[Node]) -> None:
        self.told += nodes

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.busy.append(sum(place.batch is not None for place in self.places))


class FakePlace(Place):
    world: Cluster

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = tuple(nodes)
        self.batch = cast(Batch | None, None)
        assert not {node for other in self.world.places for node in other.nodes} & set(nodes), "taken"
        self.world.places.append(self)

    def begin(self, batch: Batch, on_line: OnLine) -> None:
        assert self.batch is None, "a place runs one batch at a time"
        self.since = self.world.now
        self.batch = batch
        self.until = self.world.now + self.world.lot.uniform(*self.world.seconds)

    def ended(self) -> list[Attempt] | None:
        assert self.batch is not None
        if self.world.now < self.until:
            return None
        batch, self.batch = self.batch, None
        if not isinstance(batch.tasks[0], ReferenceTask) and self.world.loses(batch.name):
            self.is_lost = True
            self.world.there = [node for node in self.world.there if node not in self.nodes]
            self.world.there += [self.world.node() for _ in self.nodes]
            return [failed("killed", "a node was lost")] * len(batch.tasks)
        where = Placement([node.name for node in self.nodes], self.since, self.until)
        ends = (self.world.script(task, lambda *_: None) for task in batch.tasks)
        return [replace(end, placement=where) for end in ends]

    def waits(self) -> bool:
        return self.world.now > 10 or super().waits()

    def close(self) -> None:
        self.world.places.remove(self)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    world = FakePlace.world = Cluster(64)
    clock = SimpleNamespace(monotonic=lambda: world.now, time=lambda: world.now, sleep=world.sleep)
    monkeypatch.setattr(places, "time", clock)
    monkeypatch.setattr("os.fsync", lambda file: None)  # what a power cut leaves is shown elsewhere
    return world


def test_64_places_are_busy_and_of_640_trials_none_is_lost(world: Cluster, tmp_path: Path) -> None:
    base = make_trial(world_size=1)
    once = base.run.model_copy(update={"repeats": 1, "order": "rounds"})
    workloads = [base.workload.model_copy(update={"options": {"n": n}}) for n in range(640)]
    off = base.verify.model_copy(update={"mode": "off"})
    trials = [base.model_copy(update={"run": once, "workload": one, "verify": off}) for one in workloads]
    directory = RunDirectory.create(tmp_path, "sweep", spec={}, environment={})
    cluster: Any = world
    executor = lambda: PlacesExecutor(directory.path, tmp_path, cluster)  # noqa: E731
    run_sweep(SweepPlan(Expansion(trials, [])), directory, executor)
    assert statistics.median(world.busy) >= 60
    assert world.places == [], "all nodes were given back"
    directory.close()
    resumed = RunDirectory.open(directory.path)  # what was lost twice counts as not run
    again = lambda: PlacesExecutor(resumed.path, tmp_path, cluster)  # noqa: E731
    run_sweep(SweepPlan(Expansion(trials, [])), resumed, again)
    records = resumed.records()
    assert {one.trial_id for one in records if one.outcome == "ok"} == {trial.trial_id for trial in trials}
    assert len(records) == 640


@pytest.mark.parametrize(("losses", "sizes"), [(1, {3: 16}), (2, {3: 15, 1: 3})])
def test_each_node_has_a_heat_of_its_own_and_a_heat_that_loses_its_node_runs_once_more(
    world: Cluster, tmp_path: Path, losses: int, sizes: dict[int, int]
) -> None:
    """Once more as a heat; after that each of its repeats alone."""
    base = make_trial(world_size=1)
    cluster = cast(Any, world)
    heats_of_3 = base.run.model_copy(update={"steps": 8, "heat": 3, "yardstick": "none"})
    workloads = [base.workload.model_copy(update={"options": {"n": n}}) for n in range(24)]
    trials = [base.model_copy(update={"run": heats_of_3, "workload": one}) for one in workloads]
    world.there = world.there[:4]
    heats = list[str]()

    def loses(name: str) -> bool:
        heats.append(name)
        return heats[0] == name and heats.count(name) <= losses

    world.loses = loses
    directory = RunDirectory.create(tmp_path, "sweep", spec={}, environment={})
    executor = lambda: PlacesExecutor(directory.path, tmp_path, cluster)  # noqa: E731
    run_sweep(SweepPlan(Expansion(trials, [])), directory, executor)
    records = directory.records()
    assert Counter((one.trial_id, one.repeat) for one in records) == {
        (trial.trial_id, repeat): 1 for trial in trials for repeat in (0, 1)
    }
    assert {one.outcome for one in records} == {"ok"}
    together = Counter((*one.placement.nodes, one.placement.began) for one in records if one.placement)
    assert Counter(together.values()) == sizes
    assert max(world.busy) == 4
    assert world.places == []


def test_a_command_whose_nodes_stay_away_for_five_minutes_ends(world: Cluster, tmp_path: Path) -> None:
    cluster: Any = world
    executor = PlacesExecutor(tmp_path, tmp_path, cluster)
    trial = make_trial()
    world.there.clear()
    with pytest.raises(TrialsFailedError, match=r"-r0 needs 1 nodes, .* had 0 .*; add nodes and go on with"):
        run(executor, RepeatTask(trial))
    assert 300 <= world.now < 301


def test_trials_of_two_nodes_have_two_and_references_one(world: Cluster, tmp_path: Path) -> None:
    cluster: Any = world
    world.there = world.there[:3]
    executor = PlacesExecutor(tmp_path, tmp_path, cluster)
    wide = make_trial().model_copy(update={"run": make_trial().run.model_copy(update={"nodes": 2})})
    assert executor.vacancy(2).batches == 1
    tasks = [ReferenceTask(wide, tmp_path / "reference"), *(RepeatTask(wide, number) for number in range(3))]
    handles = [executor.submit(Batch((task,)), lambda *_: None) for task in tasks]
    sizes: dict[str, int] = {}
    for _ in tasks[:2]:
        executor.next_ended()
        sizes |= {place.batch.name: len(place.nodes) for place in world.places if place.batch is not None}
    assert set(sizes.values()) == {2}
    assert executor.withdraw(handles[-1])
    assert not executor.withdraw(handles[-2]), "it has begun"
    executor.close()
    assert world.places == []


def test_a_task_whose_node_has_gone_runs_once_more_elsewhere(world: Cluster, tmp_path: Path) -> None:
    cluster: Any = world
    executor = PlacesExecutor(tmp_path, tmp_path, cluster)
    for losses in (1, 2):
        executor.submit(Batch((RepeatTask(make_trial(), losses),)), lambda *_: None)
        gone = list[Node]()
        for _ in range(losses):
            executor._advance()
            (node,) = world.places[-1].nodes
            world.there.remove(node)
            gone.append(node)
            world.now += 1.0
        _, _, attempt = executor.next_ended()
        if losses == 2:
            assert attempt.error is not None
            assert attempt.error.message == f"node {gone[1].name} was lost: it is not there any more"
        else:
            assert attempt.placement is not None
            assert attempt.placement.nodes != [gone[0].name]
    world.there = gone  # they are there again
    executor.submit(Batch((RepeatTask(make_trial()),)), lambda *_: None)
    assert executor.next_ended()[2].outcome == "ok"
    assert world.workers == [(str(tmp_path), DEFAULT_TARGETS)] * 4, "a worker whose node was gone is gone"


def test_whose_nodes_are_waited_for_is_told_once(world: Cluster, tmp_path: Path) -> None:
    cluster: Any = world
    world.seconds = 20.0, 20.0
    executor = PlacesExecutor(tmp_path, tmp_path, cluster)
    for number in range(2):
        executor.submit(Batch((RepeatTask(make_trial(), number),)), lambda *_: None)
    executor._advance()
    assert world.told == []
    executor.next_ended()
    assert world.told == world.there[:1]
    assert 20 <= world.looks <= 22, "the cluster is asked once a second"
