"""Estimates the time of a step from the machine's rates, as a range. Does not import torch.

Lower end: computation (with the optimizer on the host), collectives and copies between device and host
overlap fully, so the longest of them counts. Upper end: nothing overlaps, so their sum counts. A range below
a factor of WIDTH is widened to it on both sides, because rates are uncertain. For a range above it the lower
end is raised. So the ends always differ by the same factor.
"""

import math
from dataclasses import asdict, dataclass

from zbench.errors import UsageError
from zbench.estimate.result import Estimate
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

WIDTH = 1.6
LEAST_ATTAINED = 0.05
_HALVINGS = 30
ASSUMED = {
    "shortest": "collectives and host copies fully overlap with computation",
    "longest": "nothing overlaps",
    "range": f"a factor of {WIDTH:g} at least, because rates are uncertain",
}
"""What the range of a step's time rests on."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step: the range and its parts. updates_s: the optimizer on the host."""

    low_s: float
    high_s: float
    compute_s: float
    collectives_s: float
    copies_s: float
    updates_s: float

    def to_json(self) -> dict[str, float]:
        """Return plain values."""
        return asdict(self)


def step_time(estimate: Estimate, trial: TrialSpec, machine: MachineSpec) -> StepTime | str:
    """Return the time of one step, or a message that names the missing rate."""
    flops = machine.flops_of(trial.engine.dtype)
    if flops is None:
        return _missing(f"flops.{trial.engine.dtype}")
    work, attained = estimate.work, machine.attained_of(trial.engine.dtype)
    of_links = machine.link_attained or attained
    compute = sum(
        each.count * max(each.flops / flops, each.nbytes / machine.memory_bandwidth) for each in work.products
    )
    compute += work.streamed_bytes / machine.memory_bandwidth
    compute = compute / attained + work.operators * (machine.operator_latency or 0.0)
    compute = max(compute, estimate.counts.launches * (machine.launch_latency or 0.0))
    parts: dict[str, float] = {}
    calls = sum(kind["calls"] for kind in estimate.traffic.values())
    sent, _ = moved(estimate.traffic, trial)
    leaving = estimate.counts.inter_node_bytes if trial.run.nodes > 1 else 0
    for name, amount, key in (
        ("collectives", sent, "link_bandwidth"),
        ("network", leaving, "network_bandwidth"),
        ("copies", work.copied_bytes, "host_link"),
        ("updates", work.host_bytes, "host_memory_bandwidth"),
    ):
        share = attained if name == "updates" else of_links
        rate = getattr(machine, key)
        if amount and rate is None:
            return _missing(key)
        parts[name] = amount / rate / share if amount else 0.0
    network = parts.pop("network")
    parts["collectives"] = max(parts["collectives"], network)  # a ring is as slow as its slowest link
    parts["collectives"] += calls * (machine.link_latency or 0.0)
    return range_of(compute, **parts)


def attaining(machine: MachineSpec, estimate: Estimate, trial: TrialSpec, measured_s: float) -> MachineSpec:
    """Return the machine with `attained` set so that the geometric mean of the range of a step is
    `measured_s` seconds; from LEAST_ATTAINED to 1. UsageError for a missing rate.
    """

    def middle(attained: float) -> float:
        time = step_time(estimate, trial, machine.model_copy(update={"attained": attained}))
        if isinstance(time, str):
            raise UsageError(time)
        return math.sqrt(time.low_s * time.high_s)

    below, above = LEAST_ATTAINED, 1.0
    for _ in range(_HALVINGS):
        share = (below + above) / 2
        below, above = (share, above) if middle(share) > measured_s else (below, share)
    return machine.model_copy(update={"attained": above})


def range_of(compute: float, collectives: float, copies: float, updates: float) -> StepTime:
    """Return the range of a step with these seconds of its parts."""
    work = compute + updates  # the optimizer on the host is not overlapped: it needs the gradients
    high = work + collectives + copies
    low = max(work, collectives, copies, high / WIDTH)
    widen = math.sqrt(WIDTH * low / high) if high else WIDTH
    return StepTime(low / widen, high * widen, compute, collectives, copies, updates)


def _missing(key: str) -> str:
    return f"the machine has no {key}; add --set machine.{key}=RATE, such as 100e9 for 100 GB/s"


def moved(traffic: dict[str, dict[str, int]], trial: TrialSpec) -> tuple[float, float]:
    """Return (bytes that one rank sends, bytes that it receives) in these collectives.

    Collectives of torch's engines say themselves what they send. Only the source counts the bytes of a
    broadcast (see CountingCollectives). Every rank broadcasts a part of its own, so a rank receives the parts
    of all others. Sums of shard groups are added over groups in float32, by a reduce-scatter and a gather.
    """
    engine = trial.engine
    shards = engine.shard_group_size or trial.run.world_size
    sent = received = 0.0
    others = shards - 1
    groups = trial.run.world_size // shards
    wider = 1 if (engine.communication_dtype or engine.dtype) == "float32" else 2
    reduced = (others + 2 * wider * (groups - 1) / groups) / shards
    for kind, payload in traffic.items():
        if "sent" in payload:
            sent += payload["sent"]
            received += payload["sent"]
            continue
        shares = {"reduce_scatter": reduced, "broadcast": 1.0}
        share = shares.get(kind, float(others))
        sent += payload["bytes"] * share
        received += payload["bytes"] * (others if kind == "broadcast" else share)
    return sent, received
