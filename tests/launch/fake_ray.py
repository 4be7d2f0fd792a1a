"""Ray as a mock: what is asked of it is noted, and the test says what nodes answer, and when."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


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
