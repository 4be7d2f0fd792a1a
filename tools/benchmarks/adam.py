"""How near the Adam update is to the memory bound, and how it stands beside torch's and DeepSpeed's.

    python -m tools.benchmarks.adam [--sizes 1M,32M] [--device cuda] [--deepspeed] [--out FILE]

All contenders of a table take turns in one process, in random order, so that what disturbs one disturbs all;
medians are compared. The bound is the same bytes moved by a hand-written loop with next to no arithmetic
(`csrc/adam/vector_stream.hpp`); on a CUDA device it is a copy of as many bytes. With THP_MEM_ALLOC_ENABLE=1
in the environment torch asks for huge pages for every contender's memory. The defaults take 4 to 6 minutes.

Tables: `plain` (float32 step, 28 bytes a parameter), `phase` (bfloat16 gradients: norm, clip, update,
bfloat16 parameters out; 30 bytes fused), `phase_bf16_moments` (22 bytes; the peers keep float32 moments: they
have no other) and `many` (2,000 tensors of 10 k elements).
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tools.benchmarks import adam_report, results
from tools.benchmarks.adam_contenders import (
    AdamPlace,
    Buffers,
    Contenders,
    deepspeed_optimizer,
    many,
    phase,
    plain,
)
from zbench import _native
from zbench.engine.adam import cuda_unavailable_reason
from zbench.units import parse_count

SIZES = "1k,10k,100k,1M,10M,32M,200M"
MOST_BYTES = 48
"""A parameter's, in the table that needs most: float32 state of all contenders, and what a step by the book
allocates in addition."""


def take_turns(
    contenders: Contenders, rounds: int, fence: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Return seconds of each contender's calls: `rounds` turns, after two that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    chance = random.Random(0)
    with torch.no_grad():
        for turn in range(rounds + 2):
            chance.shuffle(order)
            for name in order:
                fence()
                begin = time.perf_counter()
                contenders[name]()
                fence()
                elapsed = time.perf_counter() - begin
                if turn >= 2:
                    seconds[name].append(round(elapsed, 9))
    return seconds


def rounds_for(numel: int, rounds: int) -> int:
    """Return how many turns a size takes: more where a turn is short, fewer where it is long."""
    if numel <= 100_000:
        return rounds * 20
    return rounds if numel <= 64_000_000 else max(3, rounds // 3)


def fitting(sizes: Sequence[int], free_bytes: int) -> list[int]:
    """Return the sizes whose tables fit in so much memory; the largest that does in place of the others."""
    most = free_bytes // MOST_BYTES
    return sorted({min(size, most) for size in sizes})


def table(name: str, numel: int, place: AdamPlace, rounds: int, tensors: int) -> dict[str, Any]:
    """Measure one table at one size; returns medians and raw samples."""
    results.say(f"{name}, {numel:,} parameters, {place.threads or place.device.type}")
    if on_cuda := place.device.type == "cuda":
        torch.cuda.empty_cache()  # blocks of other sizes would take the room of this table's
    shared = Buffers(numel, place.device)
    makers: dict[str, Callable[[], Contenders]] = {
        "plain": lambda: plain(shared, place),
        "phase": lambda: phase(shared, place),
        "phase_bf16_moments": lambda: phase(shared, place, torch.bfloat16),
        "many": lambda: many(shared, place, tensors),
    }
    fence: Callable[[], object] = torch.cuda.synchronize if on_cuda else lambda: None
    seconds = take_turns(makers[name](), rounds_for(numel, rounds), fence)
    return {
        "table": name,
        "numel": numel,
        "threads": place.threads,
        "median_seconds": {contender: statistics.median(samples) for contender, samples in seconds.items()},
        "seconds": seconds,
    }


def measure(
    sizes: Sequence[int],
    threads: Sequence[int],
    rounds: int,
    *,
    deepspeed: bool = False,
    device: str = "cpu",
    tensors: int = 2_000,
    keep: Callable[[dict[str, Any]], object] = lambda document: None,
) -> dict[str, Any]:
    """Measure every table at every size (parameters) and thread count; returns one JSON document.

    rounds: turns of each contender. deepspeed: its optimizer joins in. tensors: of the table `many`. keep: is
    given the document after every table. On a GPU sizes are cut to what its free memory holds.
    """
    if deepspeed:
        deepspeed_optimizer([torch.nn.Parameter(torch.zeros(16))])  # compiled here, not in a timed turn
    if device == "cuda":
        refuse_missing_gpu()
        sizes = fitting(sizes, torch.cuda.mem_get_info()[0])
    tables: list[dict[str, Any]] = []
    document = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "isa": _native.isa(),
        "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        "rounds": rounds,
        "tables": tables,
    }
    for count in threads if device == "cpu" else [0]:
        if device == "cpu":
            torch.set_num_threads(count)
        place = AdamPlace(torch.device(device), count, deepspeed)
        wanted = [(name, numel) for numel in sizes for name in ("plain", "phase", "phase_bf16_moments")]
        wanted += [("many", tensors * 10_000)] if tensors else []
        for name, numel in wanted:
            tables.append(table(name, numel, place, rounds, tensors))
            keep(document)
    return document


def refuse_missing_gpu() -> None:
    """End with the reason where the CUDA kernels, or torch's, cannot run."""
    reason = cuda_unavailable_reason()
    if reason is not None or not torch.cuda.is_available():
        raise SystemExit(reason or f"torch {torch.__version__} sees no CUDA device")


def main() -> None:
    """Measure, print the page, and write it beside the samples."""
    parser = results.parser(__doc__)
    every = f"1,{len(os.sched_getaffinity(0))}"
    parser.add_argument("--sizes", default=SIZES, help=f"parameters [{SIZES}]")
    parser.add_argument("--threads", default=every, help=f"counts of CPU threads, in turn [{every}]")
    parser.add_argument("--rounds", type=int, default=31, help="turns that each contender takes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--deepspeed", action="store_true", help="its optimizer joins in, installed here")
    given = parser.parse_args()
    sizes = [parse_count(part) for part in given.sizes.split(",")]
    threads = sorted({parse_count(part) for part in given.threads.split(",")})
    tensors = 2_000 if max(sizes) >= 1_000_000 else 0
    where = {"device": given.device, "deepspeed": given.deepspeed}

    def keep(document: dict[str, Any]) -> None:
        document["bars"] = adam_report.judge(document)
        results.write(given.out, adam_report.markdown(document), document)

    print(adam_report.markdown(measure(sizes, threads, given.rounds, tensors=tensors, keep=keep, **where)))


if __name__ == "__main__":
    main()
