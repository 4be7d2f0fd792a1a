"""Faults at random moments: every finished repeat stays, once; resume finishes; nothing is left behind."""

import os

import pytest

from .campaign import campaign

SOAK_ROUNDS = int(os.environ.get("SOAK_FAULTS", "200"))


def test_a_few_random_faults_leave_nothing_wrong():
    _, counterexamples = campaign(3, seed=1)
    assert counterexamples == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_random_faults_leave_nothing_wrong():
    counts, counterexamples = campaign(SOAK_ROUNDS, seed=0)
    assert counterexamples == []
    assert sum(counts.values()) == SOAK_ROUNDS
