"""The cost of comparing collective calls between ranks: steps with and without the comparison.

    python -m zbench.bench.agreement [--steps N] [--layers N] [--width N] [--stage N] [--out FILE]

Two ranks over sockets, one thread each, train one engine; every other step runs without the bookkeeping
(calls are still numbered, which sockets need). Both kinds of step see the same load. On a busy machine the
difference disappears in noise, so the bookkeeping is also timed alone, repeated in one thread.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from zbench.bench import results
from zbench.engine import Instruments, build_engine
from zbench.engine.protocols import Tag, Work
from zbench.engine.transport.agreement import GATHERS, REDUCTIONS, Agreement, Attended, Call, Terms
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.gloo import GlooCollectives
from zbench.engine.transport.works import Done
from zbench.spec.engine import EngineSpec


class Silent:
    """Runs collectives of `comm` without comparing the calls; they are still numbered."""

    def __init__(self, comm: GroupCollectives) -> None:
        self._comm = comm

    def _call(self, channel: str) -> Call:
        return Call(channel, self._comm.agreement.next_number(channel), 0, "")

    def reduce_scatter(self, send: Tensor, out: Tensor, tag: Tag) -> Work:
        return self._comm._reduce_scatter(send, out, self._call(REDUCTIONS))

    def all_gather(self, flat: Tensor, tag: Tag) -> Work:
        return self._comm._all_gather(flat, self._call(GATHERS))


@contextmanager
def silenced(comm: GroupCollectives) -> Iterator[None]:
    """Compare no call inside."""
    silent = Silent(comm)
    with ExitStack() as stack:
        for name in ("reduce_scatter", "all_gather"):
            stack.enter_context(mock.patch.object(comm, name, getattr(silent, name)))
        stack.enter_context(mock.patch.object(Terms, "numbers", return_value=[0.0] * 4))
        yield


def measure(rank: int, given: argparse.Namespace, folder: str) -> None:
    """Train on one rank of two; rank 0 writes its samples."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    made: list[GlooCollectives] = []
    world = dist.group.WORLD
    assert world is not None

    def sockets(group: Any, *_: Any) -> GlooCollectives:
        made.append(GlooCollectives(world, torch.device("cpu")))
        return made[0]

    torch.manual_seed(0)
    width = given.width
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(given.layers)]
    spec = EngineSpec.model_validate({"zero_stage": given.stage, "gradient_clipping": 1.0})
    engine = build_engine(nn.Sequential(*layers), spec, instruments=Instruments(transport=sockets))
    batch = torch.randn(given.rows, width)
    samples: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    calls = 0
    for number in range(2 * given.steps + 6):
        kind = "off" if number % 2 else "on"
        before = made[0].agreement.calls
        begin = time.perf_counter(), time.process_time()
        with silenced(made[0]) if kind == "off" else ExitStack():
            engine.backward(engine.model(batch).square().mean())
            engine.step()
        end = time.perf_counter(), time.process_time()
        calls = made[0].agreement.calls - before
        if number >= 6:
            samples[kind].append((end[0] - begin[0], end[1] - begin[1]))
    engine.close()
    if rank == 0:
        torch.save((samples, calls), f"{folder}/samples")
    dist.barrier()
    dist.destroy_process_group()


def bookkeeping(calls: int) -> float:
    """Return the least CPU seconds that comparing so many calls, a step's, takes on one rank."""
    agreement, tag, done = Agreement(0, 2), Tag("the weights of a layer"), Done()
    terms, rounds, least = Terms((1e-3, (0.9, 0.999), 1e-8, 0.01), None), 200, math.inf
    for _ in range(9):
        begin = time.thread_time()
        for _ in range(rounds):
            for _ in range(calls):
                Attended(done, agreement.note(GATHERS, tag, 4096), agreement).wait()
            terms.numbers(agreement)
        least = min(least, (time.thread_time() - begin) / rounds)
    return least


def row(samples: dict[str, list[tuple[float, float]]], at: int) -> tuple[float, float, float]:
    """Return both medians in ms, and the median difference of neighbours over the median without."""
    on, off = ([sample[at] for sample in samples[kind]] for kind in ("on", "off"))
    difference = statistics.median(a - b for a, b in zip(on, off, strict=True))
    return statistics.median(on) * 1e3, statistics.median(off) * 1e3, difference / statistics.median(off)


def main() -> None:
    """Measure, print a table, and write it."""
    parser = results.parser(__doc__)
    for name, value in (("steps", 60), ("layers", 8), ("width", 512), ("rows", 64), ("stage", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(measure, args=(given, folder), nprocs=2)  # type: ignore[no-untyped-call]
        samples, calls = torch.load(f"{folder}/samples")
    rows = []
    for name, at in (("wall clock", 0), ("CPU of rank 0", 1)):
        on, off, cost = row(samples, at)
        rows.append([name, f"{on:.2f}", f"{off:.2f}", f"{cost:.2%}"])
    least = bookkeeping(calls)
    enough = f"0.5 % of a step of {least * 1e3 / 0.005:.1f} ms"
    text = "\n\n".join(
        [
            f"{given.layers} layers of {given.width}, stage {given.stage}, {calls} calls per step:",
            results.table(("", "compared, ms", "not compared, ms", "cost"), rows),
            f"The bookkeeping alone: {least * 1e6:.0f} us of CPU per step, {enough}.",
        ]
    )
    print(text)
    results.write(given.out, text, {"samples": samples, "calls": calls, "bookkeeping": least})


if __name__ == "__main__":
    main()
