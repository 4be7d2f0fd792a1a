"""Detects whether other processes used or slowed the machine during a trial. Reads /proc and /sys only."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zbench.record.record import OTHER_LOAD, Disturbance

_STAT = Path("/proc/stat")
_THROTTLE = "/sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count"
_TICKS = os.sysconf("SC_CLK_TCK")
_MIN_SECONDS = 0.5  # /proc/stat counts in hundredths of a second: shorter spans say nothing


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """Counters of the usable CPUs: seconds busy and stolen, throttling events; and when."""

    at: float
    busy: float
    stolen: float
    throttled: int
    cpus: int


def snapshot() -> MachineSnapshot:
    """Return the counters now."""
    cpus = os.sched_getaffinity(0)
    busy, stolen = parse_stat(_STAT.read_text().splitlines(), cpus)
    throttled = 0
    for cpu in cpus:
        file = Path(_THROTTLE.format(cpu=cpu))
        throttled += int(file.read_text()) if file.exists() else 0
    return MachineSnapshot(time.monotonic(), busy, stolen, throttled, len(cpus))


def parse_stat(lines: Iterable[str], cpus: set[int]) -> tuple[float, float]:
    """Return (busy, stolen) seconds of these CPUs since boot from /proc/stat's lines."""
    busy = stolen = 0
    for line in lines:
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _idle, _wait, irq, soft, steal, *_ = map(int, fields)
            busy += user + nice + system + irq + soft
            stolen += steal
    return busy / _TICKS, stolen / _TICKS


def free_cores(seconds: float = _MIN_SECONDS) -> set[int]:
    """Return the usable cores that were idle for nine tenths of some time from now."""
    before, began = _STAT.read_text().splitlines(), time.monotonic()
    time.sleep(seconds)
    after, passed = _STAT.read_text().splitlines(), time.monotonic() - began
    taken = {
        core: sum(parse_stat(after, {core})) - sum(parse_stat(before, {core}))
        for core in os.sched_getaffinity(0)
    }
    return {core for core, busy in taken.items() if busy < OTHER_LOAD * passed}


class DisturbanceMeter:
    """Adds up disturbances while one trial works; the time that it waits for turns does not count."""

    def __init__(self) -> None:
        self._before: MachineSnapshot | None = None
        self._spans: list[tuple[MachineSnapshot, MachineSnapshot]] = []

    def begin(self) -> None:
        """Start counting: the trial begins to work."""
        self._before = snapshot()

    def end(self) -> None:
        """Stop counting: the trial waits or has ended."""
        assert self._before is not None, "it has begun"
        self._spans.append((self._before, snapshot()))

    def disturbance(self, own_cpu_seconds: float) -> Disturbance:
        """Return the disturbance; own_cpu_seconds: CPU time of the trial's own ranks."""
        return between(self._spans, own_cpu_seconds=own_cpu_seconds)


class LoadBesides:
    """What other processes take from a trial that still works, by the CPU time that its rank 0 reports."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._first: tuple[MachineSnapshot, float] | None = None
        self._own_cpu_seconds = 0.0

    def note(self, cpu_seconds: float) -> None:
        """Note the CPU time of rank 0 so far; the ranks work alike."""
        self._first = self._first or (snapshot(), cpu_seconds)
        self._own_cpu_seconds = self._ranks * (cpu_seconds - self._first[1])

    def disturbance(self) -> Disturbance:
        """Return the disturbance since the first note."""
        if self._first is None:
            return Disturbance(0.0)
        return between([(self._first[0], snapshot())], own_cpu_seconds=self._own_cpu_seconds)


def between(
    spans: Sequence[tuple[MachineSnapshot, MachineSnapshot]], *, own_cpu_seconds: float
) -> Disturbance:
    """Return what others took in these spans; `own_cpu_seconds` is what the trial's ranks used in them."""
    throttled = sum(after.throttled - before.throttled for before, after in spans)
    if sum(after.at - before.at for before, after in spans) < _MIN_SECONDS:
        return Disturbance(0.0, 0.0, throttled)
    capacity = sum((after.at - before.at) * before.cpus for before, after in spans)
    busy = sum(after.busy - before.busy for before, after in spans)
    stolen = sum(after.stolen - before.stolen for before, after in spans)
    return Disturbance(max(0.0, busy - own_cpu_seconds) / capacity, stolen / capacity, throttled)
