"""The engine beside its peers: the same GPT step in interleaved turns; ratios of medians, peaks a rank.

    python -m zbench.bench.engines [--deepspeed-python PYTHON] [--rounds N] [--out FILE]

Every contender is a process group of its own (2 gloo ranks, 1 thread each) that lives as long as its set is
measured; the contenders of a set take a turn each, round by round, so that a drift of the machine hits all
alike. Peak bytes are those torch's CPU allocator had handed out at once during the measured steps.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zbench.measure.shim import library_path
from zbench.record.environment import machine_facts

WORLD, LAYERS, WIDTH = 2, 6, 512
SETS = (
    ("alone", "ddp", "zero_redundancy", "zbench-0", "zbench-1", "zbench-2"),
    ("alone", "ddp", "fsdp2", "deepspeed-2", "deepspeed-3", "zbench-2", "zbench-3"),
    (
        *("alone", "deepspeed-2-offload", "deepspeed-3-offload"),
        *("zbench-2-offload", "zbench-3-offload", "zbench-3-offload-speculative"),
    ),
)
BARS = (  # set, ours, theirs (the better of several), at most
    (0, "zbench-0", ("ddp",), 1.00),
    (0, "zbench-1", ("zero_redundancy",), 0.95),
    (1, "zbench-2", ("deepspeed-2",), 0.70),
    (0, "zbench-2", ("ddp",), 1.00),
    (1, "zbench-3", ("fsdp2", "deepspeed-3"), 0.75),
    (2, "zbench-2-offload", ("deepspeed-2-offload",), 0.80),
    (2, "zbench-3-offload", ("deepspeed-3-offload",), 0.70),
    (2, "zbench-3-offload-speculative", ("deepspeed-3-offload",), 0.65),
    (0, "zbench-0", ("alone",), 1.15),
    (0, "zbench-1", ("alone",), 1.15),
    (0, "zbench-2", ("alone",), 1.15),
    (1, "zbench-3", ("alone",), 1.30),
)


@dataclass(slots=True)
class Figures:
    """One contender in one set: seconds of every step, and the largest peaks over its ranks."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    rss_bytes: int = 0

    @property
    def median(self) -> float:
        """Seconds of the median step."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Run:
    """The module that each rank of a contender runs, and what is added to its environment."""

    program: str = "zbench.bench.contender"
    environment: Mapping[str, str] = field(default_factory=dict)


_USUAL = Run()


class Contender:
    """The ranks of one contender, waiting for their turn."""

    def __init__(
        self,
        mode: str,
        python: str,
        shim: str,
        *,
        size: tuple[int, ...] = (LAYERS, WIDTH),
        world: int = WORLD,
        threads: int = 1,
        run: Run = _USUAL,
    ) -> None:
        root = Path(__file__).resolve().parents[2]
        common = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": str(threads),
            "THREADS": str(threads),
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": str(root) if mode.startswith("deepspeed") else os.environ.get("PYTHONPATH", ""),
            **run.environment,
        }
        command = [python, "-m", run.program, mode, shim, *map(str, size)]
        self.mode = mode
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  (closed by `close`)
        self.ranks = [
            subprocess.Popen(
                command,
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                text=True,
            )
            for rank in range(world)
        ]

    def go(self, steps: int) -> list[dict[str, Any]]:
        """Train `steps` steps and return each rank's answer; RuntimeError if a rank died."""
        for rank in self.ranks:
            assert rank.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its missing answer tells
                rank.stdin.write(f"go {steps}\n")
                rank.stdin.flush()
        answers = []
        for rank in self.ranks:
            assert rank.stdout is not None
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(
    modes: list[str], pythons: dict[str, str], *, rounds: int, size: tuple[int, int]
) -> dict[str, Figures]:
    """Return the figures of contenders that take turns of two steps, `rounds` times in random order."""
    shim = str(library_path() or "")
    contenders: list[Contender] = []
    figures = {mode: Figures() for mode in modes}
    try:
        for mode in modes:  # one by one: some compile parts of themselves when they start
            _say(f"start {mode}")
            contenders.append(Contender(mode, pythons[mode.split("-")[0]], shim, size=size))
            contenders[-1].go(3)
        for number in range(rounds):
            _say(f"round {number + 1} of {rounds}")
            for contender in random.sample(contenders, len(contenders)):
                into = figures[contender.mode]
                answers = contender.go(2)
                into.seconds += [max(pair) for pair in zip(*(a["seconds"] for a in answers), strict=True)]
                into.peak_bytes = max(into.peak_bytes, *(a["peak_bytes"] or 0 for a in answers))
                into.rss_bytes = max(into.rss_bytes, *(a["rss_bytes"] for a in answers))
    finally:
        for contender in contenders:
            contender.close()
    return figures


def _say(what: str) -> None:
    """Tell whoever waits how far it is."""
    print(what, file=sys.stderr, flush=True)


def table(sets: dict[int, dict[str, Figures]]) -> str:
    """Return the bars and the figures behind them as Markdown."""
    lines = [
        "| ours | against | ratio of medians | bar | peak bytes a rank, ours / theirs |",
        "|---|---|---|---|---|",
    ]
    for index, ours, rivals, bar in BARS:
        found = sets.get(index, {})
        present = [r for r in rivals if r in found]
        if ours not in found or not present:
            continue
        theirs = min(present, key=lambda r: found[r].median)
        ratio = found[ours].median / found[theirs].median
        memory = found[ours].peak_bytes / max(found[theirs].peak_bytes, 1)
        lines.append(f"| {ours} | {theirs} | {ratio:.3f} | {bar:.2f} | {memory:.3f} |")
    lines += [
        "",
        "| set | contender | median step, ms | peak MiB a rank | peak RSS MiB |",
        "|---|---|---|---|---|",
    ]
    for index, found in sets.items():
        for mode, f in found.items():
            peaks = f"{f.peak_bytes / 2**20:.1f} | {f.rss_bytes / 2**20:.0f}"
            lines.append(f"| {index + 1} | {mode} | {f.median * 1e3:.1f} | {peaks} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every set, print the table, and write it beside the samples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deepspeed-python", help="interpreter that has DeepSpeed; left out without it")
    parser.add_argument("--rounds", type=int, default=8, help="turns of two steps for each contender")
    parser.add_argument("--sets", type=int, nargs="*", default=[1, 2, 3], help="which sets to measure")
    parser.add_argument("--out", type=Path, help="file to write, without its ending (.json and .md)")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the GPT; fewer for a quick try")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the GPT")
    given = parser.parse_args()
    pythons = dict.fromkeys(("alone", "ddp", "zero_redundancy", "fsdp2", "zbench"), sys.executable)
    if given.deepspeed_python:
        pythons["deepspeed"] = given.deepspeed_python
    samples: dict[int, dict[str, Figures]] = {}
    for index in (number - 1 for number in given.sets):
        modes = [mode for mode in SETS[index] if mode.split("-")[0] in pythons]
        samples[index] = measure(modes, pythons, rounds=given.rounds, size=(given.layers, given.width))
        if given.out is not None:  # after each set: a later one may die
            _write(given.out, samples, given)
    print(table(samples))


def _write(out: Path, samples: dict[int, dict[str, Figures]], given: argparse.Namespace) -> None:
    sets = {i + 1: {m: _plain(f) for m, f in found.items()} for i, found in samples.items()}
    machine, versions = machine_facts(), {"python": platform.python_version(), "torch": version("torch")}
    if given.deepspeed_python:
        ask = "from importlib.metadata import version; print(version('deepspeed'), version('torch'))"
        command = [given.deepspeed_python, "-c", ask]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        versions["deepspeed"], versions["deepspeed's torch"] = told.split()
    model = f"GPT of {given.layers} layers of {given.width}, {WORLD} ranks of one thread"
    document = {"model": model, "machine": machine, "versions": versions, "sets": sets}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    facts = ", ".join(f"{name} {value}" for name, value in {**machine, **versions}.items())
    out.with_suffix(".md").write_text(f"{model}; {facts}.\n\n{table(samples)}")


def _plain(figures: Figures) -> dict[str, Any]:
    """Return a contender's figures as plain values."""
    return {"step_seconds": figures.seconds, "peak_bytes": figures.peak_bytes, "rss_bytes": figures.rss_bytes}


if __name__ == "__main__":
    main()
