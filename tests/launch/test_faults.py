"""Faults at random moments: every finished repeat stays, once; resume finishes; nothing is left behind."""

import os
import random
import socket
import tempfile
from pathlib import Path

import pytest

from . import faults
from .campaign import campaign, fault_of, names
from .rounds import SHARED_MEMORY, Round

SOAK_ROUNDS = int(os.environ.get("SOAK_FAULTS", "220"))


@pytest.mark.parametrize("fault", ["SIGKILL server", "fsync:ENOSPC"])
def test_a_fault_leaves_nothing_wrong(fault: str, tmp_path: Path) -> None:
    played = faults.play(tmp_path, fault, random.Random(1))
    assert played.problem is None


def test_what_a_round_leaves_is_seen_and_what_another_uses_is_not(tmp_path: Path) -> None:
    one = Round(tmp_path, points=1, repeats=1)
    with (
        tempfile.NamedTemporaryFile(dir=SHARED_MEMORY),
        socket.socket(socket.AF_UNIX) as listening,
    ):
        assert one.left() == []
        listening.bind(str(tmp_path / "socket"))
        abandoned, path = tempfile.mkstemp(dir=SHARED_MEMORY)
        os.close(abandoned)
        try:
            assert one.left() == [f"left behind: {path}", f"left behind: {tmp_path / 'socket'}"]
        finally:
            os.unlink(path)


def test_every_cycle_of_a_campaign_plays_every_fault_once() -> None:
    every = names()
    for cycle in range(2):
        rounds = range(cycle * len(every), (cycle + 1) * len(every))
        assert sorted(fault_of(number, 7, every) for number in rounds) == sorted(every)


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_many_random_faults_leave_nothing_wrong() -> None:
    played = list(campaign(range(SOAK_ROUNDS), seed=0))
    assert [entry for entry in played if entry.problem is not None] == []
    assert all(entry.struck for entry in played)
