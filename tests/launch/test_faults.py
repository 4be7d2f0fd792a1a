"""Faults at random moments: every finished repeat stays, once; resume finishes; nothing is left behind."""

import os
import random
import socket
import tempfile
from pathlib import Path

import pytest

from . import faults, rounds, study_faults
from .rounds import PROCESSES, Round

ROUNDS = int(os.environ.get("SOAK_FAULTS", "220"))
TRIES = 5
NAMES = sorted([*faults.CATALOGUE, *(study_faults.CATALOGUE if study_faults.is_possible() else ())])


def fault_of(number: int, seed: int) -> str:
    """Return the fault of a round: each of them once in every cycle, in an order drawn from the seed."""
    cycle, place = divmod(number, len(NAMES))
    order = [*NAMES]
    random.Random(f"{seed}/cycle {cycle}").shuffle(order)
    return order[place]


@pytest.mark.parametrize("fault", [*(f"SIGKILL {kind}" for kind in PROCESSES), "fsync:ENOSPC"])
def test_a_fault_leaves_nothing_wrong(fault: str, tmp_path: Path) -> None:
    played = faults.play(tmp_path, fault, random.Random(1))
    assert played.problem is None


def test_what_a_round_leaves_is_seen_and_what_another_uses_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"  # what is left in the machine's own would be seen by rounds of other tests
    shared.mkdir()
    monkeypatch.setattr(rounds, "SHARED_MEMORY", shared)
    one = Round(tmp_path, points=1, repeats=1)
    with (
        tempfile.NamedTemporaryFile(dir=shared),
        socket.socket(socket.AF_UNIX) as listening,
    ):
        assert one.left() == []
        listening.bind(str(tmp_path / "socket"))
        abandoned, path = tempfile.mkstemp(dir=shared)
        os.close(abandoned)
        assert one.left() == [f"left behind: {path}", f"left behind: {tmp_path / 'socket'}"]


def test_every_cycle_of_a_campaign_plays_every_fault_once() -> None:
    for first in (0, len(NAMES)):
        cycle = range(first, first + len(NAMES))
        assert sorted(fault_of(number, 7) for number in cycle) == NAMES


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_random_fault_leaves_nothing_wrong(number: int) -> None:
    """One that came too late is played again, at another moment."""
    fault = fault_of(number, seed=0)
    catalogue = faults if fault in faults.CATALOGUE else study_faults
    for attempt in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory(prefix="fault-") as home:
            played = catalogue.play(Path(home), fault, random.Random(f"0/{number}/{attempt}"))
        assert played.problem is None, fault
        if played.struck:
            return
    pytest.fail(f"{fault} came too late {TRIES} times")
