"""What others took of the CPU while a trial ran."""

import os

import pytest

from tests.launch.conftest import make_trial
from zbench.launch.disturbance import DisturbanceMeter, MachineSnapshot, between, parse_stat
from zbench.launch.trial import TrialRunner
from zbench.record.record import OTHER_LOAD, STOLEN, Disturbance

STAT = """cpu  900 0 100 5000 0 0 0 50 0 0
cpu0 300 10 40 2500 9 1 2 20 0 0
cpu1 600 0 60 2500 0 0 0 30 0 0
cpu12 7 0 0 0 0 0 0 0 0 0
intr 5"""


def shot(at: float, busy: float, stolen: float = 0.0, throttled: int = 0) -> MachineSnapshot:
    return MachineSnapshot(at, busy, stolen, throttled, 2)


def test_only_usable_cpus_are_counted():
    tick = os.sysconf("SC_CLK_TCK")
    assert parse_stat(STAT.splitlines(), {0}) == pytest.approx((353 / tick, 20 / tick))
    assert parse_stat(STAT.splitlines(), {0, 1}) == pytest.approx(((353 + 660) / tick, 50 / tick))


def test_load_steal_and_heat_are_named():
    before, after = shot(5, 7, stolen=2.0, throttled=1), shot(15, 25, stolen=3.0, throttled=4)
    loud = between([(before, after)], own_cpu_seconds=10)
    assert loud == Disturbance(0.4, 0.05, 3)
    assert str(loud).split("; ") == [
        "the machine was loaded: other processes took 40% of the CPU time",
        "the hypervisor took CPU time: 5%",
        "the CPU was throttled for heat: 3 times",
    ]
    assert loud.severity > 1


def test_severity_above_one_means_a_warning():
    for other in (0.0, 0.05, OTHER_LOAD, 0.101, 0.5):
        disturbance = Disturbance(other, 0.0, 0)
        assert (disturbance.severity > 1) == bool(disturbance.effects())
    assert not Disturbance(OTHER_LOAD, STOLEN, 0).effects()
    assert Disturbance(0.0, STOLEN + 0.01).severity > 1 < Disturbance(0.0, 0.0, 1).severity


def test_what_all_ranks_and_their_launcher_use_is_own_work(
    runner: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: list[float] = []

    def note(_: DisturbanceMeter, own_cpu_seconds: float) -> Disturbance:
        own.append(own_cpu_seconds)
        return Disturbance(0.0)

    monkeypatch.setattr(DisturbanceMeter, "disturbance", note)
    runner.run(make_trial(do="compute", rank="all"))
    assert 1.0 < own[-1] < 1.9, "of the repeat; the reference was the first"
