"""One rank of one contender: trains a GPT step by step when told to, and reports each step's time.

Run by `tools.benchmarks.turns`, for DeepSpeed under the interpreter that has it. Reads `go N` lines on
standard input and answers each with one JSON line. The modes are `tools.benchmarks.training`'s. In the
environment: THREADS that a rank computes with (1), DEVICE (cpu), DTYPE (float32), BACKWARDS of a step (1),
VOCABULARY.
"""

import json
import os
import resource
import sys

import zbench.measure.shim  # noqa: F401 - before torch

# isort: split
import torch
import torch.distributed as dist

from tools.benchmarks.training import BATCH, LENGTH, VOCABULARY, build, random_tokens, seeded_gpt
from zbench.measure.memory import choose_meter
from zbench.worker.loop import Fence

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def main(mode: str, layers: int, width: int, micro_batch: int = BATCH, length: int = LENGTH) -> None:
    """Serve `go N` until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to standard output; answers must stand alone
    torch.set_num_threads(int(os.environ.get("THREADS", "1")))
    device = torch.device(os.environ.get("DEVICE", "cpu"))
    dist.init_process_group(BACKENDS[device.type])
    rank, world = dist.get_rank(), dist.get_world_size()
    meter, inexact = choose_meter(device)
    vocabulary = int(os.environ.get("VOCABULARY", VOCABULARY))
    backwards = int(os.environ.get("BACKWARDS", "1"))
    model = seeded_gpt(layers, width, vocabulary=vocabulary, length=length).to(device)
    data = random_tokens(micro_batch, vocabulary=vocabulary, length=length)
    engine = build(mode, model, os.environ.get("DTYPE", "float32"), backwards)
    fence, done = Fence(device), 0
    called = getattr(engine, "module", model)
    for line in sys.stdin:
        meter.reset()
        seconds = []
        for _ in range(int(line.split()[1])):
            numbers = range(done * world + rank, (done + backwards) * world, world)
            batches = [[tensor.to(device) for tensor in data.micro_batch(number)] for number in numbers]
            begin = fence.ready()
            for batch in batches:
                engine.backward(called(*batch))
            engine.step()
            seconds.append(fence.slowest(begin))
            done += backwards
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak = None if inexact else meter.peak()
        print(json.dumps({"seconds": seconds, "peak_bytes": peak, "rss_bytes": rss}), file=answers)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
