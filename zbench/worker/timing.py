"""Samples of the timed steps -> the record's Timing."""

import statistics

from zbench.measure.clock import PHASES
from zbench.record.record import Timing
from zbench.worker.loop import Samples
from zbench.workloads import Workload


def summarise(samples: Samples, workload: Workload, micro_batches: int) -> Timing:
    """Return rank 0's step times and what follows from their median.

    Tokens, samples and operations are those of all ranks together; tokens are the mean over the timed steps.
    Operations are the model's, without recomputation (`Workload.flops_per_micro_batch`), and unknown where
    steps differ in tokens. Each phase is its median over the timed steps.
    """
    median = statistics.median(samples.step_seconds)
    rate = workload.world_size * micro_batches / median
    flops = workload.flops_per_micro_batch if len(set(samples.tokens)) == 1 else None
    return Timing(
        step_seconds=samples.step_seconds,
        median_step_s=median,
        tokens_per_s=statistics.fmean(samples.tokens) / median,
        samples_per_s=workload.samples_per_micro_batch * rate,
        tflops=None if flops is None else flops * rate / 1e12,
        phases={name: statistics.median(phases[name] for phases in samples.phases) for name in PHASES},
    )
