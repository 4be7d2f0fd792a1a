"""What many estimates of an 8 B model cost: `zbench estimate` of 200 configurations on this machine's cores.

    python -m zbench.bench.estimates [--first 0] [--count 200] [--out FILE]

The configurations are of Llama-3-8B at 1,024 ranks. Wall time is that of a quiet machine only on a quiet
machine; CPU time is given beside it.
"""

import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping

MOST_SECONDS = 600.0
COUNT = 200
SPACE: dict[str, Any] = {
    "name": "estimates",
    "workload": {"model": "hf:Llama-3-8B", "sequence_length": 2048, "micro_batch_size": 1},
    "run": {"world_size": 1024},
    "engine": {"dtype": "bfloat16"},
    "axes": {
        "zero_stage": [1, 2, 3],
        "offload_optimizer": ["none", "cpu"],
        "reduce_bucket_size": ["5e7", "1e8", "2e8", "5e8", "1e9"],
        "micro_batch_size": [1, 2, 4, 8],
        "activation_checkpointing": [False, True],
    },
}


def main() -> None:
    """Estimate, print what it cost, and exit with 1 where that is more than the bar's share."""
    parser = results.parser(__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first configuration of this piece")
    parser.add_argument("--count", type=int, default=COUNT, help="so many of the 200 in this piece")
    given = parser.parse_args()
    every = random.Random(0).sample(expand(sweep_from_mapping(SPACE)).trials, COUNT)
    trials = every[given.first : given.first + given.count]
    began = time.perf_counter()
    with Simulator(Path.cwd()) as simulator:
        found = [each for each in simulator.each(trials) if isinstance(each, Estimate)]
    wall = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, cores = used.ru_utime + used.ru_stime, len(os.sched_getaffinity(0))
    text = (
        f"{len(found)} of {len(trials)} configurations of {SPACE['workload']['model']} at 1,024 ranks:"
        f" {wall:.0f} s on {cores} cores, {cpu:.0f} s of CPU ({cpu / len(trials):.2f} s each),"
        f" {used.ru_maxrss >> 10} MiB a process; 200 would take {wall / len(trials) * COUNT:.0f} s"
        f" (bar {MOST_SECONDS:.0f} s)"
    )
    print(text)
    document = {"configurations": len(found), "wall_s": wall, "cpu_s": cpu, "cores": cores}
    results.write(given.out, text, document | {"peak_kib": used.ru_maxrss})
    sys.exit(0 if len(found) == len(trials) and wall <= MOST_SECONDS * len(trials) / COUNT else 1)


if __name__ == "__main__":
    main()
