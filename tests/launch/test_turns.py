"""Participants take turns: one works at a time, whatever becomes of the others."""

import contextlib
import random
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from multiprocessing import connection
from pathlib import Path

import pytest

from zbench.job.turns import SHORTEST, Turns, turn_lengths
from zbench.launch.turns import Participant, TurnGate, balanced_orders, run_heat

pytestmark = pytest.mark.timeout(120)


class Machine:
    """Where only one may work at a time; keeps who did what, in order."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self.done: list[str] = []
        self.clashes: list[str] = []

    @contextlib.contextmanager
    def work(self, event: str) -> Iterator[None]:
        if not self._alone.acquire(blocking=False):
            self.clashes.append(event)
            yield
            return
        try:
            self.done.append(event)
            threading.Event().wait(0.001)
            yield
        finally:
            self._alone.release()


Trial = Callable[["Sweep"], None]


class Sweep(Participant):
    """A participant that runs trials in a thread; each is a function of this sweep."""

    def __init__(self, name: str, machine: Machine, place: Path, trials: list[Trial]) -> None:
        self.name = name
        self.machine = machine
        self.gate = TurnGate(place / name)
        self._thread = threading.Thread(target=self._run, args=(trials,), daemon=True)

    def advance(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self.gate.go()
        while not self.gate.all_wait and self._thread.is_alive():
            self.gate.receive(connection.wait(self.gate.waitable(), 0.01))
        if not self.waits:
            self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.gate.__exit__()

    def _run(self, trials: list[Trial]) -> None:
        for one in trials:
            one(self)


def trial(steps: int, *, dies: bool = False, ranks: int = 1) -> Trial:
    def run(sweep: Sweep) -> None:
        with sweep.machine.work(f"{sweep.name} warms up"):
            pass
        with contextlib.ExitStack() as stack:
            taken = [stack.enter_context(Turns(str(sweep.gate.path), ranks)) for _ in range(ranks)]
            for step in range(steps):
                together(Turns.wait, taken)
                with sweep.machine.work(f"{sweep.name}{step}"):
                    if dies and step == steps - 1:
                        return
            together(Turns.over, taken)
            with sweep.machine.work(f"{sweep.name} ends"):
                pass

    return run


def together(call: Callable[[Turns], None], ranks: list[Turns]) -> None:
    threads = [threading.Thread(target=call, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def heat(tmp_path: Path, *trials: list[Trial]) -> tuple[list[str], list[str], tuple[bool, ...]]:
    """Return what was done in which order, who ended when, and which participants took turns."""
    machine = Machine()
    with contextlib.ExitStack() as stack:
        sweeps = [
            stack.enter_context(Sweep(name, machine, tmp_path, one))
            for name, one in zip("ABCDEFGH", trials, strict=False)
        ]
        ended = [sweep.name for sweep in run_heat(sweeps, random.Random(3))]
        used = tuple(sweep.gate.was_used for sweep in sweeps)
    assert machine.clashes == []
    assert sorted(ended) == sorted(sweep.name for sweep in sweeps)
    return machine.done, ended, used


def of(done: list[str], name: str) -> list[str]:
    return [event for event in done if event.startswith(name)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_turns_alternate_and_whoever_is_over_waits_for_the_others(tmp_path: Path, ranks: int) -> None:
    done, _, used = heat(tmp_path, [trial(2, ranks=ranks)], [trial(4, ranks=ranks)])
    assert done[:2] == ["A warms up", "B warms up"]
    assert set(done[2:4]) == {"A0", "B0"}
    assert set(done[4:6]) == {"A1", "B1"}
    assert done[6:] == ["B2", "B3", "A ends", "B ends"]
    assert used == (True, True)


def test_five_contenders_each_in_every_cycle(tmp_path: Path) -> None:
    done, ended, _ = heat(tmp_path, *[[trial(4)] for _ in range(5)])
    for cycle in range(4):
        assert {event[0] for event in done[5 + 5 * cycle : 10 + 5 * cycle]} == set("ABCDE")
    assert ended == list("ABCDE")


def test_a_contender_that_dies_in_its_turn_ends_alone(tmp_path: Path) -> None:
    done, ended, _ = heat(tmp_path, [trial(2, dies=True)], [trial(3)])
    assert of(done, "B") == ["B warms up", "B0", "B1", "B2", "B ends"]
    assert ended == ["A", "B"]


@pytest.mark.parametrize("steps", [(0,), (0, 2), (2, 0)])
def test_one_that_asks_for_no_turn_ends_too(steps: tuple[int, ...], tmp_path: Path) -> None:
    """Its ranks may report the end at once, or be killed between a report and the launcher's look."""
    done, _, _ = heat(tmp_path, *[[trial(number)] for number in steps])
    assert [event for event in done if "ends" in event] == [f"{name} ends" for name in "AB"[: len(steps)]]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_each_contender_follows_every_other_one_equally_often(count: int) -> None:
    period = count if count % 2 == 0 else 2 * count
    orders = list(islice(balanced_orders(count, random.Random(count)), period))
    follows = Counter(pair for order in orders for pair in pairwise(order))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1
    places = Counter((place, who) for order in orders for place, who in enumerate(order))
    assert len(places) == count**2
    assert len(set(places.values())) == 1


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [(1, [1]), (7, [7]), (14, [4, 5, 5]), (30, [7, 8, 7, 8])],
)
def test_a_turn_is_a_quarter_of_the_steps_and_at_least_four(steps: int, lengths: list[int]) -> None:
    assert turn_lengths(steps) == lengths
    assert sum(lengths) == steps
    assert steps < SHORTEST or min(lengths) >= SHORTEST


def test_a_seat_has_room_in_a_deep_directory(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    with TurnGate(deep / "gate") as gate, Turns(str(gate.path)) as taken:
        assert taken.are_taken
        assert stat.S_ISSOCK(Path(gate.path).stat().st_mode), "a file, so the folder decides who connects"
