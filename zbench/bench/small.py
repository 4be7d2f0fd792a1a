"""Small models, whose step is mostly Python: the demo's step beside its peers', and ours as layers are added.

    python -m zbench.bench.small [--rounds N] [--out FILE]

The demo is the quickstart's GPT (3 layers of 128, 256 tokens), 2 ranks in interleaved turns on the product's
clock. The growth is of one process without a peer to talk to: a GPT of width 16 on 8 tokens, whose arithmetic
is next to nothing, trained by plain PyTorch (backward, `clip_grad_norm_`, fused AdamW) and by each stage in
turns. What a stage takes beyond plain PyTorch is the engine's own Python; its slope is the cost of a layer of
12 parameters.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zbench.bench import results
from zbench.bench.training import build, random_tokens, seeded_gpt
from zbench.bench.turns import Contender, Figures, RankProgram, interpreters, measure_in_turns, say

DEMO = (3, 128, 2, 128)
PEERS = ("alone", "ddp", "zero_redundancy", "fsdp2", "zbench-0", "zbench-1", "zbench-2", "zbench-3")
LAYERS, WIDTH, LENGTH = (2, 4, 8, 16, 32), 16, 8
OURS = ("alone", "zbench-0", "zbench-1", "zbench-2", "zbench-3", "zbench-1-offload")


def demo(rounds: int) -> dict[str, Figures]:
    """Return the figures of the demo's step, each contender with 2 ranks of one thread."""
    pythons, run = interpreters(None), RankProgram(environment={"VOCABULARY": "256"})
    start = partial(Contender, size=DEMO, run=run)
    starts = {mode: partial(start, mode, pythons[mode.split("-")[0]]) for mode in PEERS}
    return measure_in_turns(starts, rounds, warmup=20, steps=10)


def growth(layers: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds of each step of each mode, in turns, in this process."""
    data = random_tokens(1, vocabulary=16, length=LENGTH)
    takes = {mode: _step(mode, layers, data) for mode in OURS}
    for take in takes.values():
        for number in range(5):
            take(number)
    seconds: dict[str, list[float]] = {mode: [] for mode in OURS}
    for number in range(steps):
        for mode, take in takes.items():
            begin = time.perf_counter()
            take(number)
            seconds[mode].append(time.perf_counter() - begin)
    return seconds


def _step(mode: str, layers: int, data: Any) -> Callable[[int], object]:
    model = seeded_gpt(layers, WIDTH, vocabulary=16, length=LENGTH)
    engine = build(mode, model)
    called = getattr(engine, "module", model)

    def take(number: int) -> object:
        engine.backward(called(*data.micro_batch(number)))
        return engine.step()

    return take


def table(shown: dict[str, Figures], grown: dict[int, dict[str, list[float]]]) -> str:
    """Return both parts as Markdown."""
    ddp = shown["ddp"].median
    rows = [[mode, f"{1e3 * one.median:.2f}", f"{one.median / ddp:.2f}"] for mode, one in shown.items()]
    medians = {n: {mode: statistics.median(s) for mode, s in by.items()} for n, by in grown.items()}
    beyond = []
    for mode in OURS[1:]:
        excess = {n: 1e6 * (by[mode] - by["alone"]) for n, by in medians.items()}
        slope = statistics.linear_regression(list(excess), list(excess.values())).slope
        beyond.append([mode, *(f"{value:.0f}" for value in excess.values()), f"{slope:.0f}"])
    plain = ["plain PyTorch, whole step", *(f"{1e6 * by['alone']:.0f}" for by in medians.values()), "-"]
    columns = ("us a step beyond plain PyTorch", *(f"{n} layers" for n in medians), "a layer")
    return "\n\n".join(
        [
            results.table(("the demo's step", "median ms", "of DDP"), rows),
            results.table(columns, [plain, *beyond]),
        ]
    )


def main() -> None:
    """Measure, print the tables, and write them."""
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    shown = demo(given.rounds)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=(Path(folder) / "meet").as_uri(), rank=0, world_size=1)
        grown = {}
        for layers in LAYERS:
            say(f"{layers} layers")
            grown[layers] = growth(layers, 10 * given.rounds)
        dist.destroy_process_group()
    text = table(shown, grown)
    results.write(given.out, text, {"demo": {m: one.seconds for m, one in shown.items()}, "growth": grown})
    print(text)


if __name__ == "__main__":
    main()
