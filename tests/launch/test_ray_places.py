"""The Ray executor's queue over places that are mocks in a time of their own, and are lost as Ray's are."""

import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zbench.errors import TrialsFailedError
from zbench.launch.cluster import ray_executor
from zbench.launch.cluster.ray_cluster import Node
from zbench.launch.cluster.ray_executor import RayExecutor
from zbench.launch.executor import Attempt, HeatTask, ReferenceTask, RepeatTask, Task
from zbench.launch.sweep import SweepPlan, SweepRun
from zbench.record.record import Failure, Placement
from zbench.record.store import RunDirectory
from zbench.spec.expand import Expansion

from .conftest import make_trial
from .mock_executor import MockExecutor


class World:
    """Nodes and time. Each task takes 1 to 3 s; one that loses its nodes has others in their place.

    loses: whether a task does, by its name; one in 30 if not said otherwise.
    """

    def __init__(self, count: int) -> None:
        self.now, self.lot, self.made = 0.0, random.Random(1), 0
        self.there = [self.node() for _ in range(count)]
        self.busy: list[int] = []
        self.places: list[FakePlace] = []
        self.ends = MockExecutor()
        self.loses: Callable[[str], bool] = lambda name: self.lot.random() < 1 / 30

    def node(self) -> Node:
        self.made += 1
        return Node(f"{self.made:08}", f"10.0.0.{self.made}", 1, 0)

    def nodes(self) -> list[Node]:
        return list(self.there)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.busy.append(sum(place.task is not None for place in self.places))


class FakePlace:
    world: World

    def __init__(self, nodes: list[Node], *_: object) -> None:
        self.nodes, self.is_lost = tuple(nodes), False
        self.task: Task | HeatTask | None = None
        assert not {node for other in self.world.places for node in other.nodes} & set(nodes), "taken"
        self.world.places.append(self)

    def begin(self, task: Task | HeatTask, watch: object) -> None:
        assert self.task is None, "a place runs one task at a time"
        self.since = self.world.now
        self.task, self.until = task, self.world.now + self.world.lot.uniform(1, 3)

    def ended(self) -> list[Attempt] | None:
        assert self.task is not None
        if self.world.now < self.until:
            return None
        task, self.task = self.task, None
        tasks = task.tasks if isinstance(task, HeatTask) else [task]
        if not isinstance(task, ReferenceTask) and self.world.loses(task.name):
            self.is_lost = True
            self.world.there = [node for node in self.world.there if node not in self.nodes]
            self.world.there += [self.world.node() for _ in self.nodes]
            return [Attempt("crashed", Failure("killed", "a node was lost"))] * len(tasks)
        where = Placement([node.name for node in self.nodes], self.since, self.until)
        return [replace(self.world.ends.run(one), placement=where) for one in tasks]

    def waits(self) -> bool:
        return False

    def close(self) -> None:
        self.world.places.remove(self)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = FakePlace.world = World(64)
    monkeypatch.setattr(ray_executor, "Place", FakePlace)
    clock = SimpleNamespace(monotonic=lambda: world.now, time=lambda: world.now, sleep=world.sleep)
    monkeypatch.setattr(ray_executor, "time", clock)
    monkeypatch.setattr("os.fsync", lambda file: None)  # what a power cut leaves is shown elsewhere
    return world


def test_64_places_are_busy_and_of_640_trials_none_is_lost(world: World, tmp_path: Path) -> None:
    base = make_trial(world_size=1)
    once = base.run.model_copy(update={"repeats": 1, "order": "rounds"})
    workloads = [base.workload.model_copy(update={"options": {"n": n}}) for n in range(640)]
    off = base.verify.model_copy(update={"mode": "off"})
    trials = [base.model_copy(update={"run": once, "workload": one, "verify": off}) for one in workloads]
    directory = RunDirectory.create(tmp_path, "sweep", spec={}, environment={})
    cluster: Any = world
    executor = lambda: RayExecutor(directory.path, tmp_path, cluster)  # noqa: E731
    SweepRun(SweepPlan(Expansion(trials, [])), directory, executor).run()
    assert statistics.median(world.busy) >= 60
    assert world.places == [], "all nodes were given back"
    directory.close()
    resumed = RunDirectory.open(directory.path)  # what was lost twice counts as not run
    SweepRun(
        SweepPlan(Expansion(trials, [])), resumed, lambda: RayExecutor(resumed.path, tmp_path, cluster)
    ).run()
    records = resumed.records()
    assert {one.trial_id for one in records if one.outcome == "ok"} == {trial.trial_id for trial in trials}
    assert len(records) == 640


@pytest.mark.parametrize(("losses", "sizes"), [(1, {3: 16}), (2, {3: 15, 1: 3})])
def test_each_node_has_a_heat_of_its_own_and_a_heat_that_loses_its_node_runs_once_more(
    world: World, tmp_path: Path, losses: int, sizes: dict[int, int]
) -> None:
    """Once more as a heat; after that each of its repeats alone."""
    base, cluster = make_trial(world_size=1), cast(Any, world)
    run = base.run.model_copy(update={"steps": 8, "heat": 3, "yardstick": "none"})
    workloads = [base.workload.model_copy(update={"options": {"n": n}}) for n in range(24)]
    trials = [base.model_copy(update={"run": run, "workload": one}) for one in workloads]
    world.there, heats = world.there[:4], list[str]()

    def loses(name: str) -> bool:
        heats.append(name)
        return heats[0] == name and heats.count(name) <= losses

    world.loses = loses
    directory = RunDirectory.create(tmp_path, "sweep", spec={}, environment={})
    executor = lambda: RayExecutor(directory.path, tmp_path, cluster)  # noqa: E731
    SweepRun(SweepPlan(Expansion(trials, [])), directory, executor).run()
    records = directory.records()
    assert Counter((one.trial_id, one.repeat) for one in records) == {
        (trial.trial_id, repeat): 1 for trial in trials for repeat in (0, 1)
    }
    assert {one.outcome for one in records} == {"ok"}
    together = Counter((*one.placement.nodes, one.placement.began) for one in records if one.placement)
    assert Counter(together.values()) == sizes
    assert max(world.busy) == 4
    assert world.places == []


def test_a_command_whose_nodes_stay_away_for_five_minutes_ends(world: World, tmp_path: Path) -> None:
    cluster: Any = world
    executor, trial = RayExecutor(tmp_path, tmp_path, cluster), make_trial()
    world.there.clear()
    with pytest.raises(TrialsFailedError, match=r"-r0 needs 1 nodes, .* had 0 .*; add nodes and go on with"):
        executor.run(RepeatTask(trial))
    assert 300 <= world.now < 301


def test_trials_of_two_nodes_have_two_and_references_one(world: World, tmp_path: Path) -> None:
    cluster: Any = world
    world.there = world.there[:3]
    executor = RayExecutor(tmp_path, tmp_path, cluster)
    wide = make_trial().model_copy(update={"run": make_trial().run.model_copy(update={"nodes": 2})})
    assert executor.room(2) == 1
    tasks = [RepeatTask(wide, repeat) for repeat in range(3)]
    executor.expect([ReferenceTask(wide, tmp_path / "reference"), *tasks])
    sizes: dict[str, int] = {}
    for name in ("reference-reference", *(task.name for task in tasks)):
        executor.first([name])
        sizes |= {place.task.name: len(place.nodes) for place in world.places if place.task is not None}
        sizes.setdefault(name, 0)
    assert all(executor.has_begun(task.name) for task in tasks)
    assert executor.withdraw([task.name for task in tasks]) == [task.name for task in tasks]
    executor.close()
    assert world.places == []
