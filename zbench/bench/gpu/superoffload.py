"""SuperOffload on the device: what speculation leaves exposed, DeepSpeed beside it, and a trace of one step.

The trace is Chrome's format (chrome://tracing, Perfetto): torch.profiler's kernels and copies, and the CPU
updates of the native threads, which the profiler does not see, added from the schedule's own timeline.
"""

import gzip
import json
import time
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from zbench.bench.gpu import offload_peers
from zbench.bench.gpu.outcome import Bar, PartOutcome, Place
from zbench.bench.speculative import BARS, LIMITS, PHASES, Setup, make_engine, measure, medians, one_step
from zbench.engine.speculative import Speculative
from zbench.engine.speculative.worker import Interval

TINY = Setup(layers=1, width=64, length=32)
# 0.34 G parameters, six engines: 33 GB of optimizer state in host memory, doubled where it is speculative.
WHOLE = Setup(layers=12, width=1536, length=1024, batch=8, dtype="bfloat16", device="cuda", threads=None)


def run(place: Place) -> PartOutcome:
    """Measure the schedules, then trace one speculative step, then measure DeepSpeed's beside ours."""
    setup = TINY if place.tiny else WHOLE
    if place.device != setup.device and not place.tiny:
        raise RuntimeError("the whole measurement needs a CUDA device; use --tiny on a CPU")
    if place.device == "cuda":
        setup = setup.on("cuda")
    median = medians(measure(1 if place.tiny else 12, setup))
    bars = [
        Bar(
            f"exposed, clipping {clip}: speculative / after_backward",
            round(median[clip, "speculative"]["exposed"] / median[clip, "after_backward"]["exposed"], 3),
            bar,
        )
        for clip, bar in BARS.items()
    ]
    rows = [["clipping", "schedule", "forward, ms", "backward, ms", "exposed, ms", "whole step, ms"]]
    for (clip, schedule), m in median.items():
        rows.append([clip, schedule, *(f"{m[k] * 1e3:.2f}" for k in PHASES)])
    under, whole = trace(setup, place.out / "superoffload-trace.json.gz")
    rows += offload_peers.rows(place, setup, 1 if place.tiny else 6)
    says = f"{under:.2f} of {whole:.2f} ms of CPU updates ran under backward; superoffload-trace.json.gz"
    return PartOutcome("passed", says, rows, bars)


def trace(setup: Setup, file: Path) -> tuple[float, float]:
    """Write a trace of one step; return the milliseconds of CPU updates under backward, and in all."""
    engine = make_engine(LIMITS["not triggered"], "speculative", setup)
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (setup.device == "cuda")
    try:
        for step in range(3):
            one_step(engine, step, {k: [] for k in PHASES}, setup)
        with profile(activities=kinds) as profiled:
            loss = engine.model(*setup.micro_batch(3))
            begin = time.monotonic_ns()
            engine.backward(loss)
            end = time.monotonic_ns()
            engine.step()
            setup.finish()
        schedule = engine.schedule
        assert isinstance(schedule, Speculative)
        updates = list(schedule.worker.timeline)
    finally:
        engine.close()
    _write(profiled, updates, file)
    under = sum(max(0, min(u.end_ns, end) - max(u.start_ns, begin)) for u in updates)
    return under / 1e6, sum(u.end_ns - u.start_ns for u in updates) / 1e6


def _write(profiled: profile, updates: list[Interval], file: Path) -> None:
    plain = file.with_suffix("")
    profiled.export_chrome_trace(str(plain))
    known: dict[str, Any] = json.loads(plain.read_text(encoding="utf-8"))
    plain.unlink()
    shift = time.time_ns() - time.monotonic_ns() - int(known.get("baseTimeNanoseconds", 0))
    known["traceEvents"] += [
        {
            "name": f"CPU update of subgroup {u.subgroup}",
            "ph": "X",
            "cat": "zbench",
            "pid": "zbench",
            "tid": "optimizer threads",
            "ts": (u.start_ns + shift) / 1e3,
            "dur": (u.end_ns - u.start_ns) / 1e3,
        }
        for u in updates
    ]
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        json.dump(known, stream)
