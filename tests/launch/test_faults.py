"""Faults at random moments: every finished repeat stays, once; resume finishes; nothing is left behind."""

import os

import pytest

from .campaign import campaign

SOAK_ROUNDS = int(os.environ.get("SOAK_FAULTS", "200"))


def test_a_few_random_faults_leave_nothing_wrong():
    assert campaign(3, seed=1).counterexamples == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_random_faults_leave_nothing_wrong():
    found = campaign(SOAK_ROUNDS, seed=0)
    assert found.counterexamples == []
    assert found.struck.total() == SOAK_ROUNDS
