"""SuperOffload on the device: what speculation leaves exposed, and DeepSpeed beside it.

DeepSpeed's whole steps are those of ZeRO-3 with the optimizer on the CPU, in turns with zbench's.
"""

import os
import sys
from contextlib import ExitStack, closing
from dataclasses import replace

from tools.benchmarks.gpu.commands import deepspeed_python
from tools.benchmarks.gpu.outcome import Bar, PartOutcome, Place
from tools.benchmarks.speculative import BARS, COLUMNS, Setup, measure, medians, phase_rows, ratio
from tools.benchmarks.training import CLIP
from tools.benchmarks.turns import Contender, Figures, take_turns

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
    """Measure the schedules, then DeepSpeed's beside ours."""
    setup = replace(TINY if place.tiny else WHOLE, device=place.device)
    median = medians(measure(1 if place.tiny else 12, setup))
    title = "exposed, clipping {}: speculative / after_backward"
    ratios = {clip: round(ratio(median, clip, "exposed"), 3) for clip in BARS}
    bars = [Bar(title.format(clip), ratios[clip], bar) for clip, bar in BARS.items()]
    rows = [COLUMNS, *phase_rows(median), *peer_rows(place, setup, 1 if place.tiny else 6)]
    exposed = median["not triggered", "speculative"]["exposed"]
    says = f"speculation leaves {exposed * 1e3:.2f} ms of the update exposed"
    return PartOutcome("passed", says, rows, bars)


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
