"""One rank of one build: trains a stack of layers with the engine of the zbench that is installed here.

Run by `tools.benchmarks.builds` from a copy, so that two builds run the same code. It imports only names that
the design fixes. Reads `go N` lines on standard input and answers each with one JSON line.
"""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist

from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec


def _block(width: int) -> torch.nn.Module:
    wide = 4 * width
    return torch.nn.Sequential(torch.nn.Linear(width, wide), torch.nn.GELU(), torch.nn.Linear(wide, width))


def main(mode: str, layers: int, width: int) -> None:
    """Serve `go N` until standard input ends. mode: `zbench-STAGE[-offload[-speculative]]`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    _, stage, *options = mode.split("-")
    model = torch.nn.Sequential(*(_block(width) for _ in range(layers)))
    spec = {"zero_stage": int(stage), "gradient_clipping": 1.0}
    spec["offload_optimizer"] = "cpu" if "offload" in options else "none"
    spec["offload_schedule"] = "speculative" if "speculative" in options else "after_backward"
    engine = build_engine(model, EngineSpec.model_validate(spec))
    batch = torch.randn(256, width)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            begin = time.perf_counter()
            engine.backward(model(batch).square().mean())
            engine.step()
            seconds.append(time.perf_counter() - begin)
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": None, "rss_bytes": rss}), file=answers)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
