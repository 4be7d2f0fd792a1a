"""Contenders, each a process group, that take turns, so that a drift of the machine affects all alike."""

import contextlib
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.benchmarks import results
from zbench.launch.slurm_task import free_port

ROOT = Path(__file__).resolve().parents[2]
WORLD, LAYERS, WIDTH = 2, 6, 512


@dataclass(slots=True)
class Figures:
    """The figures of one contender: seconds of every step, and the largest peaks over its ranks."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    rss_bytes: int = 0

    def add(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Add the steps that a contender's ranks report; a step takes as long as its slowest rank."""
        self.seconds += [max(pair) for pair in zip(*(a["seconds"] for a in answers), strict=True)]
        self.peak_bytes = max(self.peak_bytes, *(a["peak_bytes"] or 0 for a in answers))
        self.rss_bytes = max(self.rss_bytes, *(a["rss_bytes"] for a in answers))

    @property
    def median(self) -> float:
        """Seconds of the median step."""
        return statistics.median(self.seconds)


class Contender:
    """The ranks of one contender, waiting for their turn."""

    def __init__(
        self,
        mode: str,
        python: str,
        *,
        size: tuple[int, ...] = (LAYERS, WIDTH),
        world: int = WORLD,
        threads: int = 1,
        program: str = "tools.benchmarks.contender",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """program: the module that each rank runs; environment: what is added to this one."""
        common = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port("127.0.0.1")),
            "WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": str(threads),
            "THREADS": str(threads),
            "DS_ACCELERATOR": "cpu",
            **(environment or {}),
        }
        command = [python, "-m", program, mode, *map(str, size)]
        self.mode = mode
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  (closed by `close`)
        self.ranks = [
            subprocess.Popen(
                command,
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                cwd=ROOT,
                text=True,
            )
            for rank in range(world)
        ]

    def go(self, steps: int, patience: float | None = None) -> list[dict[str, Any]]:
        """Train `steps` steps and return each rank's answer; RuntimeError if a rank died, or if none came in
        `patience` seconds.
        """
        for rank in self.ranks:
            assert rank.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its missing answer tells
                rank.stdin.write(f"go {steps}\n")
                rank.stdin.flush()
        answers = []
        for rank in self.ranks:
            assert rank.stdout is not None
            if not select.select([rank.stdout], [], [], patience)[0]:
                raise RuntimeError(f"{self.mode}: no answer in {patience} s")
            line = rank.stdout.readline()
            if not line:
                self.log.seek(0)
                last = "".join(self.log.readlines()[-12:])
                raise RuntimeError(f"{self.mode}: a rank ended with status {rank.wait()}\n{last}")
            answers.append(json.loads(line))
        return answers

    def close(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self.log.close()


def take_turns(
    contenders: Mapping[str, Contender], figures: Mapping[str, Figures], rounds: int, steps: int = 2
) -> None:
    """Have every contender train `steps` steps, `rounds` times in random order, and add to its figures."""
    for number in range(rounds):
        results.say(f"round {number + 1} of {rounds}")
        for name in random.sample(list(contenders), len(contenders)):
            figures[name].add(contenders[name].go(steps))


def measure_in_turns(
    starts: Mapping[str, Callable[[], Contender]], rounds: int, warmup: int = 3, steps: int = 2
) -> dict[str, Figures]:
    """Start contenders, have each train `warmup` steps, and return their figures of `rounds` turns of
    `steps` steps.
    """
    figures = {name: Figures() for name in starts}
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name, start in starts.items():  # one by one: some compile parts of themselves when they start
            results.say(f"start {name}")
            contenders[name] = stack.enter_context(contextlib.closing(start()))
            contenders[name].go(warmup)
        take_turns(contenders, figures, rounds, steps)
    return figures


def interpreters(deepspeed_python: str | None) -> dict[str, str]:
    """Return the interpreter of each engine that this machine has, by the first word of its mode."""
    found = dict.fromkeys(("alone", "ddp", "zero_redundancy", "fsdp2", "zbench"), sys.executable)
    return found | ({"deepspeed": deepspeed_python} if deepspeed_python else {})
