"""Compiled ZeRO-1 on the device beside eager: steps and peaks of two ranks, with and without CUDA graphs.

Two ranks share the card, through host memory. The shape is Qwen3-8B's, scaled to what fits beside a second
rank.
"""

import statistics
import sys
from contextlib import closing

from tools.benchmarks.gpu.outcome import PartOutcome, Place
from tools.benchmarks.turns import Contender

TINY, WHOLE = (1, 64, 1, 16), (16, 2048, 2, 1024)  # layers, width, micro-batch, length
COLUMNS = ["mode", "CUDA graphs", "peak MiB per rank", "median step, ms"]


def run(place: Place) -> PartOutcome:
    """Train each kind, one after another: two ranks of it fill the card."""
    rows, peaks = [COLUMNS], {}
    kinds = [("zbench-1", False), ("zbench-1-inductor", False)]
    for mode, graphs in kinds + [("zbench-1-inductor", True)] * (place.device == "cuda"):
        environment = {"DEVICE": place.device, "TORCHINDUCTOR_CUDAGRAPHS": str(int(graphs))}
        size = TINY if place.tiny else WHOLE
        with closing(Contender(mode, sys.executable, size=size, environment=environment)) as contender:
            contender.go(1 if place.tiny else 3)
            answers = contender.go(1 if place.tiny else 5)
        peaks[mode, graphs] = max(answer["peak_bytes"] or 0 for answer in answers)
        seconds = [max(pair) for pair in zip(*(answer["seconds"] for answer in answers), strict=True)]
        figures = [f"{peaks[mode, graphs] / 2**20:.1f}", f"{statistics.median(seconds) * 1e3:.1f}"]
        rows.append([mode, "yes" if graphs else "no", *figures])
    saved = peaks["zbench-1", False] - peaks["zbench-1-inductor", False]
    return PartOutcome("passed", f"compiled holds {saved / 2**20:.1f} MiB less than eager", rows)
