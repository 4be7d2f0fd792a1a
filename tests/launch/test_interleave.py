"""Sweeps that take turns: one works at a time, whatever becomes of the other."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.making import make_trial
from zbench.launch.disturbance import Disturbance
from zbench.launch.executor import RepeatTask, patience
from zbench.launch.interleave import InterleavedSweep, interleave
from zbench.worker import interleave as worker_interleave
from zbench.worker.interleave import Interleave
from zbench.worker.job import RankJob


def job(path: str | None, rank: int = 0) -> RankJob:
    return RankJob({}, rank, 1, "", "", "", "", interleave=path)


class Machine:
    """Where only one may work at a time; keeps who did what, in order."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self.done: list[str] = []
        self.clashes: list[str] = []

    @contextlib.contextmanager
    def work(self, what: str) -> Iterator[None]:
        if not self._alone.acquire(blocking=False):
            self.clashes.append(what)
            yield
            return
        try:
            self.done.append(what)
            threading.Event().wait(0.002)
            yield
        finally:
            self._alone.release()


class Sweep:
    """A sweep of trials; each is a function of this sweep."""

    def __init__(
        self, name: str, machine: Machine, path: Path, trials: list["Callable[[Sweep], None]"]
    ) -> None:
        self.name, self.machine, self.path, self._trials = name, machine, path, trials
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.start = self._thread.start

    def has_ended(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive()

    def _run(self) -> None:
        for trial in self._trials:
            trial(self)


def trial(steps: int, *, dies: bool = False) -> Callable[[Sweep], None]:
    def run(sweep: Sweep) -> None:
        taking = Interleave(job(str(sweep.path)), lambda: None)
        with sweep.machine.work(f"{sweep.name} warms up"):
            pass
        for step in range(steps):
            taking.wait()
            with sweep.machine.work(f"{sweep.name}{step}"):
                if dies and step == steps - 1:
                    break
        else:
            taking.over()
        with sweep.machine.work(f"{sweep.name} ends"):
            taking._close()  # as the end of its process would

    return run


def old_version(sweep: Sweep) -> None:
    for step in range(3):
        with sweep.machine.work(f"{sweep.name}{step}"):
            pass


def together(tmp_path: Path, *trials: list[Callable[[Sweep], None]]) -> tuple[list[str], tuple[bool, ...]]:
    """Return what was done in which order, and which sweeps took turns."""
    machine = Machine()
    with contextlib.ExitStack() as stack:
        sweeps = [Sweep(name, machine, tmp_path / name, one) for name, one in zip("AB", trials, strict=True)]
        gates = [stack.enter_context(InterleavedSweep(one.path, one.start, one.has_ended)) for one in sweeps]
        interleave(gates)
    assert machine.clashes == []
    assert all(one.has_ended() for one in sweeps)
    return machine.done, tuple(gate.was_used for gate in gates)


@pytest.fixture(autouse=True)
def each_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_interleave, "TURN_SECONDS", 0.0)


STARTS = ["A warms up", "B warms up"]
ENDS = ["A ends", "B ends"]


def test_timed_steps_alternate_and_whoever_is_over_waits_for_the_other(tmp_path: Path) -> None:
    done, used = together(tmp_path, [trial(2)], [trial(4)])
    assert done == [*STARTS, "A0", "B0", "A1", "B1", "B2", "B3", *ENDS]
    assert used == (True, True)


def test_a_turn_lasts_for_whole_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_interleave, "TURN_SECONDS", 60.0)
    done, _ = together(tmp_path, [trial(3)], [trial(3)])
    assert done == [*STARTS, "A0", "A1", "A2", "B0", "B1", "B2", *ENDS]


def test_trial_by_trial_and_the_longer_sweep_ends_alone(tmp_path: Path) -> None:
    done, _ = together(tmp_path, [trial(1), trial(2)], [trial(1), trial(1), trial(1)])
    second = ["A ends", "A warms up", "B ends", "B warms up", "A0", "B0", "A1", *ENDS[:1]]
    assert done == [*STARTS, "A0", "B0", *second, "B ends", "B warms up", "B0", "B ends"]


def test_a_trial_that_dies_in_its_turn_has_no_more(tmp_path: Path) -> None:
    done, _ = together(tmp_path, [trial(2, dies=True), trial(1)], [trial(3), trial(1)])
    first = ["A0", "B0", "A1", "A ends", "A warms up", "B1", "B2", "B ends", "B warms up"]
    assert done == [*STARTS, *first, "A0", "B0", *ENDS]


@pytest.mark.parametrize("old_first", [True, False])
def test_a_version_that_knows_no_turns_runs_on_its_own(tmp_path: Path, old_first: bool) -> None:
    both = [[old_version], [trial(2)]]
    done, used = together(tmp_path, *(both if old_first else both[::-1]))
    assert used == (not old_first, old_first)
    if old_first:
        assert done == ["A0", "A1", "A2", "B warms up", "B0", "B1", "B ends"]
    else:
        assert done == ["A warms up", "B0", "B1", "B2", "A0", "A1", "A ends"]


def test_a_repeat_in_turns_has_time_for_the_other_one() -> None:
    one = make_trial(world_size=2, timeout=10.0)
    assert patience(RepeatTask(one)) == 10
    assert patience(RepeatTask(one), interleaved=True) == 30
    assert patience(RepeatTask(one, reference=Path("there")), interleaved=True) == 30 + 80


def test_the_other_trials_work_is_no_disturbance_but_stolen_time_is() -> None:
    found = Disturbance(other=0.5, stolen=0.06, throttled=0)
    assert found.without_others() == Disturbance(0.0, 0.06, 0)
    assert found.without_others().severity == pytest.approx(2)
