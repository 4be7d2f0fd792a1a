"""ZeRO-3 with the optimizer on the CPU: whole steps of zbench and of DeepSpeed, in turns on the device."""

import os
import sys
from contextlib import ExitStack, closing

from zbench.bench.gpu.decoder import deepspeed_python
from zbench.bench.gpu.outcome import Place
from zbench.bench.speculative import Setup
from zbench.bench.training import CLIP
from zbench.bench.turns import Contender, Figures, RankProgram, take_turns

OURS = {
    "zbench, stage 3, speculative": "zbench-3-offload-speculative",
    "zbench, stage 3, after_backward": "zbench-3-offload",
}
_PATIENCE = 100.0  # seconds for the first steps; DeepSpeed compiles its CPU optimizer in them, once
THEIRS = {
    "DeepSpeed's SuperOffload": "deepspeed-3-offload-super",
    "DeepSpeed's ZeRO-Offload": "deepspeed-3-offload",
}


def rows(place: Place, setup: Setup, rounds: int) -> list[list[str]]:
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
    run = RankProgram(environment=environment)
    return Contender(mode, python or sys.executable, size=size, world=1, threads=threads, run=run)
