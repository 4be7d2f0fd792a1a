"""The parts of `tools.gpu`, in the order in which they are run."""

import importlib.util
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tools.benchmarks.gpu.commands import deepspeed_python, judged, measured, sweep
from tools.benchmarks.gpu.outcome import Bar, PartOutcome, Place
from zbench.job.turns import turn_lengths
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep

ROOT = Path(__file__).resolve().parents[3]
SWEEPS = ("quickstart", "stages", "accumulation", "peers", "superoffload", "compiled")


@dataclass(frozen=True, slots=True)
class Part:
    """One part: what it shows, and the seconds after which it is ended."""

    name: str
    shows: str
    seconds: int
    run: Callable[[Place], PartOutcome]


def ranks(place: Place) -> PartOutcome:
    """Several ranks on one card under NCCL; on a CPU gloo takes its place."""
    from tools.benchmarks.gpu.ranks import run

    return run(place)


def tests(place: Place) -> PartOutcome:
    """Every test that is marked `cuda`; on a CPU they are only collected."""
    # the project's own options ask for plugins that may be missing
    options = ["-m", "cuda and not soak", "-o", "addopts=-q -p no:cacheprovider"]
    if importlib.util.find_spec("xdist"):
        options += ["-n", "8", "--dist", "worksteal"]
    command = [sys.executable, "-m", "pytest", "tests/engine", "tests/worker", "tests/launch", *options]
    if place.device == "cpu":
        command.append("--collect-only")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stderr, done.stdout)
    lines = (done.stderr + done.stdout).strip().splitlines() or ["pytest printed nothing"]
    passed = re.search(r"(\d+) passed", lines[-1]) or place.device == "cpu"
    return PartOutcome("passed" if done.returncode == 0 and passed else "failed", lines[-1])


def adam(place: Place) -> PartOutcome:
    """The update against the card's copy rate and torch's fused AdamW."""
    out = place.out / "adam-tables"
    sizes, rounds = ("1k", "3") if place.tiny else ("100M,500M,1000M,2000M", "9")
    command = [sys.executable, "-m", "tools.benchmarks.adam", "--sizes", sizes, "--rounds", rounds]
    command += ["--device", place.device, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    document: dict[str, Any] = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    bars = [Bar(b["says"], round(b["ratio"], 3), b["least"], most=False) for b in document["bars"]]
    rows = [["table", "parameters", "contender", "median, ms"]]
    for table in document["tables"]:
        for name, seconds in table["median_seconds"].items():
            rows.append([table["table"], f"{table['numel']:,}", name, f"{seconds * 1e3:.3f}"])
    return PartOutcome("passed", f"{len(document['tables'])} tables", rows, bars)


def superoffload(place: Place) -> PartOutcome:
    """What speculation leaves exposed; torch is imported where it runs, not where it is named."""
    from tools.benchmarks.gpu.superoffload import run

    return run(place)


FOLDER = Path(__file__).parent
SMALL = {
    "options": {"layers": 1, "width": 32, "heads": 2, "vocabulary": 64},
    "sequence_length": 16,
    "micro_batch_size": 1,
}


VERIFIED = (
    {"zero_stage": 0},
    {"zero_stage": 3},
    {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"},
)


def decoder(place: Place) -> PartOutcome:
    """The verdicts of three rows, the sweep of ours and torch's engines, and DeepSpeed's, if it is there."""
    sets = [f"include={json.dumps(VERIFIED)}", "verify.mode=reference", "run.steps=2"]
    verified = _decoder_sweep(
        place, "decoder", sys.executable, [] if place.tiny else sets, run="decoder-verified"
    )
    timed = _decoder_sweep(place, "decoder", sys.executable)
    status = timed.status if verified.status == "passed" else verified.status
    says = f"{verified.says}; {timed.says}"
    rows = [*verified.rows, *timed.rows[1:]]
    outcome = PartOutcome(status, says, rows)
    python = deepspeed_python(place)
    if python is None:
        return replace(outcome, says=f"{outcome.says}; DeepSpeed is not installed: no rows of it")
    theirs = _decoder_sweep(place, "decoder-deepspeed", python)  # a peer's failure is in its row
    return replace(outcome, says=f"{outcome.says}; {theirs.says}", rows=[*outcome.rows, *theirs.rows[1:]])


def turns(place: Place) -> PartOutcome:
    """Every repeat but the first, which runs alone, takes turns on the device, and needs as much memory."""
    file = FOLDER / "turns.yaml"
    tiny = [*_smallest_decoder(file), "run.steps=8", "run.yardstick=[machine]"] if place.tiny else []
    trials = measured(file, place, "turns", sets=tiny, repeats=3)
    outcome = judged(trials)
    in_heats = [trial for trial in trials if trial.get("heat")]
    alone, beside = (
        {(t["trial_id"], t["memory"]["peak_device_bytes"]) for t in some if t["memory"]}
        for some in ([t for t in trials if not t.get("heat")], in_heats)
    )
    shares = [share for trial in in_heats for share in _first_of_last(trial)]
    says = f"{outcome.says}; {len(in_heats)} repeats in turns, {len(beside - alone)} with another peak"
    if shares:
        middle = statistics.median(shares)
        count = len(shares)
        says += f"; a turn's first timed step takes {middle:.3f} of its last (median of {count} turns)"
    yardsticks = [trial["heat"]["machine"] for trial in in_heats]
    for part in dict.fromkeys(part for of in yardsticks for part in of):
        logs = [[math.log(s) for s in of[part]] for of in yardsticks if part in of]
        varied = statistics.median(map(statistics.stdev, logs))
        says += f"; the yardstick's {part} varies by {varied:.1%} from turn to turn"
    took_turns = place.tiny or (len(in_heats) == 2 * len(alone) and beside <= alone)
    is_right = outcome.status == "passed" and took_turns
    return replace(outcome, status="passed" if is_right else "failed", says=says)


def _first_of_last(trial: dict[str, Any]) -> list[float]:
    """Return a turn's first timed step over its last, for each turn."""
    seconds = iter(trial["timing"]["step_seconds"])
    timed = [list(islice(seconds, n - 1)) for n in turn_lengths(trial["config"]["run"]["steps"])]
    return [of[0] / of[-1] for of in timed]


def _decoder_sweep(
    place: Place, name: str, python: str, sets: Sequence[str] = (), run: str = ""
) -> PartOutcome:
    file = FOLDER / f"{name}.yaml"
    sets = [*sets, *_smallest_decoder(file)] if place.tiny else sets
    return sweep(file, place, run or name, sets=sets, python=python)


def _smallest_decoder(file: Path) -> list[str]:
    sets = [f"workload.{key}={json.dumps(value)}" for key, value in SMALL.items()]
    return [*sets, *smallest_form(file)]


def shipped(name: str) -> Callable[[Place], PartOutcome]:
    """Return what runs one of `sweeps/` end to end."""

    def run(place: Place) -> PartOutcome:
        file = ROOT / "sweeps" / f"{name}.yaml"
        python = deepspeed_python(place) if name == "peers" else None
        sets = smallest_form(file, [_DEEPSPEED] if python else []) if place.tiny else []
        if python not in (None, sys.executable):
            sets.append(f"engine.engine_python={python}")  # all its rows, so that they share one torch
        return sweep(file, place, name, sets=sets)

    return run


_DEEPSPEED = {"engine": "deepspeed", "zero_stage": 2, "offload_optimizer": "none"}


def smallest_form(file: Path, more: Sequence[dict[str, Any]] = ()) -> list[str]:
    """Return what leaves of a sweep its last configuration, and `more`, and two steps."""
    last = expand(load_sweep(file)).trials[-1]
    sets = {"axes": {}, "exclude": [], "include": [last.axes, *more], "verify.mode": "reference"}
    return [
        "run.steps=1",
        "run.warmup_steps=1",
        *(f"{key}={json.dumps(value)}" for key, value in sets.items()),
    ]


_DECODER = "a decoder of 0.3 G parameters in bfloat16: stages, offload, speculation"
PARTS = (
    Part("ranks", "several ranks on one card under NCCL", 380, ranks),
    Part("tests", "every test marked `cuda`", 240, tests),
    Part("adam", "the update against the card's copy rate and torch's fused AdamW", 150, adam),
    Part("superoffload", "what speculation leaves exposed", 240, superoffload),
    Part("decoder", _DECODER, 480, decoder),
    Part("turns", "trials that share a GPU and take turns (`run.order: turns`)", 300, turns),
    *(Part(f"sweep-{s}", f"sweeps/{s}.yaml end to end", 200, shipped(s)) for s in SWEEPS),
)
"""By importance: what does not fit in the time of one call is `missing`, and the next call goes on."""
