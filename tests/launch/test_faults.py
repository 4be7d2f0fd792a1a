"""Faults at random moments: every finished repeat stays, once; resume finishes; nothing is left behind."""

import os
from pathlib import Path

import pytest

from . import faults
from .campaign import campaign, fault_of, names, read

SOAK_ROUNDS = int(os.environ.get("SOAK_FAULTS", "220"))


@pytest.mark.parametrize("fault", ["SIGKILL server", "fsync:ENOSPC"])
def test_a_fault_leaves_nothing_wrong(fault: str, tmp_path: Path) -> None:
    import random

    played = faults.play(tmp_path, fault, random.Random(1))
    assert played.problem is None


def test_every_cycle_of_a_campaign_plays_every_fault_once() -> None:
    every = names()
    for cycle in range(2):
        rounds = range(cycle * len(every), (cycle + 1) * len(every))
        assert sorted(fault_of(number, 7, every) for number in rounds) == sorted(every)


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_many_random_faults_leave_nothing_wrong(tmp_path: Path) -> None:
    log = tmp_path / "campaign.jsonl"
    found = campaign(SOAK_ROUNDS, seed=0, log=log)
    assert [entry for entry in found if entry.problem is not None] == []
    assert read(log) == found
    assert len(found) == SOAK_ROUNDS
    assert all(entry.struck for entry in found)
