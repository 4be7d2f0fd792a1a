"""Compiled ZeRO-1 on the device: what memory the reductions hold, with and without CUDA graphs.

Two ranks share the card, through host memory. `released` is the engine as it is; `held` keeps buckets through
the step and targets beside the partition, as the scheme does that step-local memory replaces
(`zbench.bench.lifetimes`). The shape is Qwen3-8B's, scaled to what fits beside a second rank.
"""

import statistics
import sys
from contextlib import closing
from typing import Any

from zbench.bench.gpu.outcome import PartOutcome, Place
from zbench.bench.turns import Contender, RankProgram

TINY, WHOLE = (1, 64, 1, 16), (16, 2048, 2, 1024)  # layers, width, micro-batch, length
COLUMNS = ["memory", "CUDA graphs", "rank", "peak MiB", "partition + buckets MiB", "median step, ms"]


def run(place: Place) -> PartOutcome:
    """Train each kind, one after another: two ranks of it fill the card."""
    rows, peaks = [COLUMNS], {}
    kinds = [("released", False), ("held", False)] + [("released", True)] * (place.device == "cuda")
    for mode, graphs in kinds:
        answers = _train(place, mode, graphs=graphs)
        for rank, a in enumerate(answers):
            formula = a["partition_bytes"] + a["bucket_bytes"]
            sizes = [f"{size / 2**20:.1f}" for size in (a["peak_bytes"], formula)]
            taken = f"{statistics.median(a['seconds']) * 1e3:.1f}"
            rows.append([mode, "yes" if graphs else "no", str(rank), *sizes, taken])
        peaks[mode, graphs] = max(a["peak_bytes"] for a in answers)
    saved = peaks["held", False] - peaks["released", False]
    good = saved > 0 or place.tiny
    return PartOutcome("passed" if good else "failed", f"released holds {saved / 2**20:.1f} MiB less", rows)


def _train(place: Place, mode: str, *, graphs: bool) -> list[dict[str, Any]]:
    environment = {
        "DEVICE": place.device,
        "LOWERING": "aot_eager" if place.tiny else "inductor",
        "TORCHINDUCTOR_CUDAGRAPHS": str(int(graphs)),
        **({"BESIDE": str(1 << 20)} if place.tiny else {}),
    }
    size = TINY if place.tiny else WHOLE
    run = RankProgram("zbench.bench.lifetimes", environment)
    with closing(Contender(mode, sys.executable, size=size, run=run)) as contender:
        contender.go(1 if place.tiny else 3)
        return contender.go(1 if place.tiny else 5)
