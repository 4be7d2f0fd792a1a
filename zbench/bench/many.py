"""One sweep of 224 small configurations: the seconds beyond their steps, and what verification adds.

    python -m zbench.bench.many [--out FILE]

The sweep runs twice as a user would run it, without and with verification, one repeat of each configuration
on 2 ranks. Steps are the mean timed step times all steps of a trial, warm-up included. All configurations
have one reference: it is computed once.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.spec.trial import TrialSpec
from zbench.worker.job import reference_key

STEPS, WARMUP = 5, 1
SWEEP: dict[str, Any] = {
    "name": "many",
    "workload": {"model": "mlp", "options": {"hidden": 64}, "sequence_length": 32},
    "run": {"world_size": 2, "steps": STEPS, "warmup_steps": WARMUP, "repeats": 1},
    "axes": {
        "zero_stage": [0, 1, 2, 3],
        "reduce_bucket_size": [1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000],
        "allgather_bucket_size": [1000, 10_000, 100_000, 1_000_000],
        "overlap_comm": [True, False],
    },
}


@dataclass(frozen=True, slots=True)
class Sums:
    """Seconds of one sweep: by the wall clock, inside its trials, and in their steps; and its references."""

    configurations: int
    wall: float
    trials: float
    steps: float
    references: int


def measure(verify: str, folder: Path) -> Sums:
    """Run the sweep in `folder`; RuntimeError where a configuration failed."""
    file = folder / f"{verify}.json"
    file.write_text(json.dumps(SWEEP | {"verify": {"mode": verify}}))
    command = [sys.executable, "-m", "zbench", "sweep", file.name, "--json", "-q", "-o", verify]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    wall = time.monotonic() - begin
    if done.returncode:
        raise RuntimeError(f"the sweep ended with {done.returncode}: {done.stderr[-2000:]}")
    document = json.loads(done.stdout)
    trials = document["trials"]
    means = (sum(r["timing"]["step_seconds"]) / STEPS for r in trials)
    made = (TrialSpec.model_validate({**r["config"], "axes": r["axes"]}) for r in trials)
    return Sums(
        configurations=len(trials),
        wall=wall,
        trials=sum(r["elapsed_s"] for r in trials),
        steps=sum(means) * (STEPS + WARMUP),
        references=len({reference_key(trial) for trial in made if trial.verify.mode != "off"}),
    )


def table(found: dict[str, Sums]) -> str:
    """Return the sums as Markdown."""
    columns = (
        *("verification", "configurations", "wall s", "steps s", "beyond steps, ms each"),
        *("outside of trials s", "references"),
    )
    rows = []
    for name, one in found.items():
        beyond = 1e3 * (one.trials - one.steps) / one.configurations
        seconds = (f"{one.wall:.1f}", f"{one.steps:.1f}", f"{beyond:.0f}", f"{one.wall - one.trials:.1f}")
        rows.append([name, one.configurations, *seconds, one.references])
    return results.table(columns, rows)


def main() -> None:
    """Measure, print the table, and write it."""
    given = results.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {verify: measure(verify, Path(folder)) for verify in ("off", "full")}
    text = table(found)
    results.write(given.out, text, {"sums": {name: asdict(one) for name, one in found.items()}})
    print(text)


if __name__ == "__main__":
    main()
