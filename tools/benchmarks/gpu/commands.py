"""Runs zbench's own commands for a part, and reads what they print."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.benchmarks.gpu.outcome import PartOutcome, Place

GOOD = ("identical", "equivalent")
COLUMNS = ("configuration", "outcome", "median step, ms", "tokens / s", "peak device MiB", "verdict")


def document(*arguments: str, python: str) -> dict[str, Any]:
    """Return the document that `zbench ARGUMENTS --json` prints; RuntimeError where it prints none.

    Its messages go to this process's standard error.
    """
    command = [python, "-c", "from zbench.cli.main import main; main()", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        raise RuntimeError(f"zbench {' '.join(arguments)} ended with {done.returncode}, no result") from None


def deepspeed_python(place: Place) -> str | None:
    """Return an interpreter that has DeepSpeed: the one that was named, or this one; else None."""
    own = sys.executable if importlib.util.find_spec("deepspeed") else None
    return place.deepspeed_python or own


def sweep(
    file: Path, place: Place, name: str, *, sets: Sequence[str] = (), python: str = sys.executable
) -> PartOutcome:
    """Run each configuration of a sweep file once on the device: every trial ok, every verdict good."""
    return judged(measured(file, place, name, sets=sets, python=python))


def measured(
    file: Path,
    place: Place,
    name: str,
    *,
    sets: Sequence[str] = (),
    repeats: int = 1,
    python: str = sys.executable,
) -> list[dict[str, Any]]:
    """Run each configuration of a sweep file on the device, and return the record of each repeat.

    A run of an earlier attempt is resumed, so repeats that were measured then are not run again.
    """
    runs = place.out / "runs" / name
    arguments = ["sweep", str(file), "-o", str(runs), "--repeats", str(repeats), "-q"]
    tiny = ["run.yardstick=none", "run.threads_per_rank=1"] if place.tiny else []
    for assignment in (f"run.device={place.device}", *tiny, *sets):
        arguments += ["--set", assignment]
    begun = sorted(runs.glob("*/*/trials.jsonl"))
    if begun:
        arguments = ["sweep", "--resume", str(begun[-1].parent), "-o", str(runs), "-q"]
    run = document(*arguments, python=python)
    if "trials" not in run:
        raise RuntimeError(str(run.get("error", run))[:500])
    return list(run["trials"])


def judged(trials: Sequence[dict[str, Any]]) -> PartOutcome:
    """Return the outcome of repeats: failed if one failed, or its verdict is bad."""
    rows = [COLUMNS, *(_row(trial) for trial in trials)]
    counted = [t for t in trials if t["outcome"] != "invalid"]
    bad = [t for t in counted if t["outcome"] != "ok" or _verdict(t) not in (*GOOD, "unchecked")]
    checked = sum(_verdict(t) in GOOD for t in counted)
    says = f"{len(counted) - len(bad)} of {len(counted)} trials ok, {checked} of them identical or equivalent"
    return PartOutcome("failed" if bad or not counted else "passed", says, rows)


def _verdict(trial: dict[str, Any]) -> str:
    return str((trial.get("correctness") or {}).get("verdict", "unchecked"))


def _row(trial: dict[str, Any]) -> list[str]:
    name = ", ".join(f"{key.removeprefix('engine.')}={value}" for key, value in trial["axes"].items())
    timing, memory = trial.get("timing") or {}, trial.get("memory") or {}
    peak = memory.get("peak_device_bytes")
    return [
        name,
        trial["outcome"],
        f"{timing['median_step_s'] * 1e3:.1f}" if timing else "",
        f"{timing['tokens_per_s']:.0f}" if timing else "",
        "" if peak is None else f"{peak / 2**20:.1f}",
        _verdict(trial),
    ]
