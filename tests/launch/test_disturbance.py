"""What others took of the CPU while a trial ran."""

import os

import pytest

from tests.launch.conftest import make_trial
from zbench.launch.disturbance import DisturbanceMeter, MachineSnapshot, between, parse_stat, snapshot
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


def test_own_work_is_no_disturbance():
    quiet = between([(shot(0, 0), shot(10, 19.5))], own_cpu_seconds=19.5)
    assert quiet.effects() == {}
    assert quiet.severity == 0


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
    assert Disturbance(0.0, 0.0, 1).severity > 1


def test_spans_too_short_for_the_kernels_clock_say_nothing():
    assert between([(shot(0, 0), shot(0.1, 0.2))], own_cpu_seconds=0.0).severity == 0


def test_snapshot_reads_this_machine():
    before, after = snapshot(), snapshot()
    assert after.at >= before.at
    assert after.busy >= before.busy > 0
    assert before.cpus == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("options", "least"), [({}, 0.0), ({"do": "compute", "rank": "all"}, 1.0)])
def test_what_all_ranks_and_their_launcher_use_is_own_work(
    runner: TrialRunner, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], least: float
) -> None:
    own: list[float] = []

    def note(_: DisturbanceMeter, own_cpu_seconds: float) -> Disturbance:
        own.append(own_cpu_seconds)
        return Disturbance(0.0)

    monkeypatch.setattr(DisturbanceMeter, "disturbance", note)
    for _ in range(2):
        runner.run(make_trial(**options))
    repeats = own[-2:]  # the reference was the first
    assert all(least < seconds < least + 0.9 for seconds in repeats), own
