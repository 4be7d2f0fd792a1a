"""A synthetic cost surface, shaped like ZeRO's but measured nowhere; recorded grids are in
results/benchmarks.

Time of a step = compute + communication (bandwidth and latency per bucket, partly hidden by overlap) + update
(sharded from stage 1, slower and without device memory when offloaded). Each seed draws another machine.
"""

import math
import random
from typing import Any

from zbench.record.record import Correctness, Failure, MemoryPeaks, Record, Timing
from zbench.spec.load import sweep_from_mapping
from zbench.spec.sweep import SweepSpec
from zbench.tune.space import Space

PARAMETERS = 3_000_000
AXES: dict[str, list[Any]] = {
    "zero_stage": [0, 1, 2, 3],
    "offload_optimizer": ["none", "cpu"],
    "reduce_bucket_size": [10_000, 100_000, 1_000_000, 10_000_000],
    "overlap_comm": [True, False],
    "gradient_accumulation_steps": [1, 4],
    "micro_batch_size": [1, 2, 4],
}


def synthetic_sweep(**changes: Any) -> SweepSpec:
    """Return a sweep over six axes with a memory limit that about half of its points meet."""
    data: dict[str, Any] = {
        "name": "synthetic",
        "workload": {"model": "mlp"},
        "run": {"world_size": 2},
        "axes": AXES,
        "search": {"method": "tpe"},
        "objective": {"maximize": "tokens_per_s", "subject_to": {"peak_device_bytes": "<= 75M"}},
    }
    return sweep_from_mapping(data | changes, environ={})


def synthetic_records(sweep: SweepSpec, seed: int) -> list[Record]:
    """Return one record of every point of the sweep on the machine that `seed` draws."""
    machine = Machine(seed)
    points = Space(sweep).points()
    assert points is not None
    return [machine.record(point, index) for index, point in enumerate(points)]


class Machine:
    """A machine with its own speeds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"machine/{seed}")
        draw = self._random.uniform
        self.compute, self.growth = draw(20, 60), draw(0.6, 1.0)
        self.latency, self.bandwidth = draw(0.05, 0.6), draw(5, 40)
        self.update, self.offload, self.gather, self.hidden = (
            draw(2, 10),
            draw(0.5, 2.5),
            draw(1, 2),
            draw(0.2, 0.8),
        )

    def reseed(self, text: str) -> None:
        """Make the noise of the next record a function of this text alone."""
        self._random.seed(text)

    def milliseconds(self, point: dict[str, Any]) -> float:
        """Return the time of one step."""
        stage, bucket = point["zero_stage"], point["reduce_bucket_size"]
        micro, steps = point["micro_batch_size"], point["gradient_accumulation_steps"]
        buckets = math.ceil(PARAMETERS / bucket)
        rounds = 1 if stage < 2 else steps
        communication = rounds * (self.bandwidth * (1.0 if stage == 0 else 0.8) + buckets * self.latency)
        communication += (0, 0.5, 0.5, self.gather * steps)[stage] * self.bandwidth
        if point["overlap_comm"] and buckets > 1:
            communication *= 1 - self.hidden
        update = self.update * (1.0 if stage == 0 else 0.5)
        update *= 1 + (self.offload if point.get("offload_optimizer") == "cpu" else 0)
        return steps * self.compute * micro**self.growth + communication + update

    def bytes(self, point: dict[str, Any]) -> int:
        """Return the peak device memory of one rank."""
        stage = point["zero_stage"]
        share = [0.5 if stage >= needed else 1.0 for needed in (3, 2, 1)]
        moments = 0 if point.get("offload_optimizer") == "cpu" else 8 * share[2]
        activations = 8_000_000 * point["micro_batch_size"]
        return (
            int(PARAMETERS * (4 * share[0] + 4 * share[1] + moments))
            + 8 * point["reduce_bucket_size"]
            + activations
        )

    def record(self, point: dict[str, Any], index: int) -> Record:
        """Return what a trial at this point would leave; every 17th point fails or is wrong."""
        seconds = self.milliseconds(point) * (1 + self._random.gauss(0, 0.01)) / 1000
        rate = 128 * point["micro_batch_size"] * point["gradient_accumulation_steps"] * 2 / seconds
        timing = Timing([seconds] * 4, seconds, rate, rate / 128)
        memory = MemoryPeaks(self.bytes(point), 0, self.bytes(point))
        known: dict[str, Any] = {"run_id": "synthetic", "trial_id": f"{index:012x}", "repeat": 0}
        known |= {"axes": point, "config": {}}
        if index % 17 == 5:
            return Record(**known, outcome="crashed", error=Failure("crashed", "synthetic"))
        verdict = "wrong" if index % 17 == 11 else "identical"
        return Record(
            **known,
            outcome="ok",
            timing=timing,
            memory=memory,
            correctness=Correctness(verdict=verdict),  # type: ignore[arg-type]
        )
