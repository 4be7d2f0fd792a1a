"""Whether something else used the machine, or slowed it, while a trial ran. Reads /proc and /sys only."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

OTHER_LOAD = 0.10
"""Share of the usable CPU time that others may take before a repeat counts as disturbed."""

STOLEN = 0.03
"""Share of the usable CPU time that a hypervisor may take."""

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


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What others took between two snapshots, as shares of the usable CPU time."""

    other: float
    stolen: float
    throttled: int

    @property
    def severity(self) -> float:
        """0 when undisturbed; larger is worse. Orders two runs of one repeat."""
        return max(self.other / OTHER_LOAD, self.stolen / STOLEN, 2.0 * (self.throttled > 0))

    def without_others(self) -> "Disturbance":
        """Return it without the load by others: in turns, most of that is the other trial's."""
        return replace(self, other=0.0)

    def warnings(self) -> list[str]:
        """Say what disturbed the repeat; empty when nothing did."""
        texts = []
        if self.other > OTHER_LOAD:
            texts.append(f"the machine was loaded: other processes took {self.other:.0%} of the CPU time")
        if self.stolen > STOLEN:
            texts.append(f"the hypervisor took CPU time: {self.stolen:.0%}")
        if self.throttled:
            texts.append(f"the CPU was throttled for heat: {self.throttled} times")
        return texts


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


def between(before: MachineSnapshot, after: MachineSnapshot, *, own_cpu_seconds: float) -> Disturbance:
    """Return what others took; `own_cpu_seconds` is what the trial's ranks used in between."""
    seconds = after.at - before.at
    if seconds < _MIN_SECONDS:
        return Disturbance(0.0, 0.0, after.throttled - before.throttled)
    capacity = seconds * before.cpus
    other = max(0.0, after.busy - before.busy - own_cpu_seconds) / capacity
    return Disturbance(other, (after.stolen - before.stolen) / capacity, after.throttled - before.throttled)
