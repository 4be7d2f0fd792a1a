"""SuperOffload on the device: what speculation leaves exposed, a trace of one step, and DeepSpeed beside it.

DeepSpeed's whole steps are those of ZeRO-3 with the optimizer on the CPU, in turns with zbench's.

The trace is Chrome's format (chrome://tracing, Perfetto): torch.profiler's kernels and copies, and the CPU
updates of the native threads, which the profiler does not see, added from the schedule's own timeline.
"""

import gzip
import json
import os
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from tools.benchmarks.gpu.decoder import deepspeed_python
from tools.benchmarks.gpu.outcome import Bar, PartOutcome, Place
from tools.benchmarks.speculative import (
    BARS,
    LIMITS,
    PHASES,
    Setup,
    make_engine,
    measure,
    medians,
    one_step,
    ratio,
)
from tools.benchmarks.training import CLIP
from tools.benchmarks.turns import Contender, Figures, take_turns
from zbench.engine.speculative import Speculative
from zbench.engine.speculative.worker import UpdateTime

TINY = Setup(layers=1, width=64, length=32)
# 0.34 G parameters, six engines: 33 GB of optimizer state in host memory, doubled where it is speculative.
WHOLE = Setup(layers=12, width=1536, length=1024, batch=8, dtype="bfloat16", device="cuda", threads=None)
OURS = {
    "zbench, stage 3, speculative": "zbench-3-offload-speculative",
    "zbench, stage 3, after_backward": "zbench-3-offload",
}
_PATIENCE = 100.0  # seconds for the first steps; DeepSpeed compiles its CPU optimizer in them, once
THEIRS = {
    "DeepSpeed's SuperOffload": "deepspeed-3-offload-super",
    "DeepSpeed's ZeRO-Offload": "deepspeed-3-offload",
}


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
            round(ratio(median, clip, "exposed"), 3),
            bar,
        )
        for clip, bar in BARS.items()
    ]
    rows = [["clipping", "schedule", "forward, ms", "backward, ms", "exposed, ms", "whole step, ms"]]
    for (clip, schedule), m in median.items():
        rows.append([clip, schedule, *(f"{m[k] * 1e3:.2f}" for k in PHASES)])
    under, whole = trace(setup, place.out / "superoffload-trace.json.gz")
    rows += peer_rows(place, setup, 1 if place.tiny else 6)
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


def _write(profiled: profile, updates: list[UpdateTime], file: Path) -> None:
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


def peer_rows(place: Place, setup: Setup, rounds: int) -> list[list[str]]:
    """Return a row of the part's table for each; one that cannot run says why, and others go on."""
    python, theirs = deepspeed_python(place), dict(THEIRS)
    if place.device == "cpu":
        del theirs["DeepSpeed's SuperOffload"]  # it needs a device
    found: dict[str, str] = dict.fromkeys(theirs, "DeepSpeed is not installed") if python is None else {}
    contenders: dict[str, Contender] = {}
    with ExitStack() as stack:
        for name, mode in {**OURS, **({} if python is None else theirs)}.items():
            contender = _contender(mode, python if name in theirs else None, setup)
            stack.enter_context(closing(contender))
            try:
                contender.go(3, _PATIENCE)
            except RuntimeError as error:  # a peer that does not run here must not end the part
                found[name] = f"failed: {str(error).splitlines()[-1][:120]}"
                continue
            contenders[name] = contender
        figures = {name: Figures() for name in contenders}
        take_turns(contenders, figures, rounds)
    found |= {name: f"{figure.median * 1e3:.2f}" for name, figure in figures.items()}
    return [[str(CLIP), name, "", "", "", found[name]] for name in {**OURS, **theirs}]


def _contender(mode: str, python: str | None, setup: Setup) -> Contender:
    threads = os.cpu_count() or 1 if setup.device == "cuda" else 1
    environment = {"DEVICE": setup.device, "DTYPE": setup.dtype, "DS_ACCELERATOR": setup.device}
    size = (setup.layers, setup.width, setup.batch, setup.length)
    python = python or sys.executable
    return Contender(mode, python, size=size, world=1, threads=threads, environment=environment)
