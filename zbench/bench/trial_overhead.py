"""What a trial of a tiny model costs beyond its own steps, on 2 ranks.

    python -m zbench.bench.trial_overhead [--repeats N] [--out FILE]

The whole wall time of `TrialRunner.run` less the time of all steps (the mean timed step times warm-up and
timed steps). What is left is the start of two processes, their rendezvous, building model and engine,
verification, and the end: an upper bound of what the launcher adds. The server is that of a sweep of so many
repeats: it has loaded what these trials need.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from zbench.bench import results
from zbench.launch.jobs import targets_for
from zbench.launch.trial import local_runner
from zbench.spec.trial import TrialSpec

STEPS, WARMUP, BAR = 3, 1, 0.10
TRIAL = TrialSpec.model_validate(
    {
        "workload": {"model": "mlp"},
        "run": {"world_size": 2, "steps": STEPS, "warmup_steps": WARMUP},
        "engine": {"zero_stage": 1},
    }
)


def measure(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each repeat: of the whole trial, and beyond its steps."""
    walls, beyond = [], []
    with tempfile.TemporaryDirectory(prefix="zbench-overhead-") as name:
        scratch = Path(name)
        targets = targets_for([TRIAL] * repeats)
        with local_runner(scratch, scratch, targets=targets, rerun_disturbed=False) as runner:
            runner.wait_until_ready()
            runner.reference(TRIAL)
            for repeat in range(repeats):
                begin = time.monotonic()
                record = runner.run(TRIAL, repeat=repeat)
                wall = time.monotonic() - begin
                assert record.timing is not None, record.error
                walls.append(wall)
                beyond.append(wall - statistics.mean(record.timing.step_seconds) * (STEPS + WARMUP))
    return {"wall": walls, "beyond_steps": beyond}


def table(seconds: dict[str, list[float]]) -> str:
    """Return the figures as Markdown."""
    lines = ["| seconds per trial | median | least | most | bar |", "|---|---|---|---|---|"]
    for name, values in seconds.items():
        bar = f"{BAR:.2f}" if name == "beyond_steps" else "-"
        figures = f"{statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f}"
        lines.append(f"| {name.replace('_', ' ')} | {figures} | {bar} |")
    return "\n".join([*lines, "", f"{len(seconds['wall'])} repeats.", ""])


def main() -> None:
    """Measure, print the table, and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--out", type=Path, help="file to write, without its ending (.json and .md)")
    given = parser.parse_args()
    seconds = measure(given.repeats)
    text = table(seconds)
    if given.out is not None:
        results.write(given.out, text, {"seconds": seconds})
    print(text)


if __name__ == "__main__":
    main()
