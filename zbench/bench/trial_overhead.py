"""What a trial of a tiny model costs beyond its own steps, on 2 ranks.

    python -m zbench.bench.trial_overhead [--repeats N] [--out FILE]

The whole wall time of `TrialRunner.run` less the time of all steps (the mean timed step times warm-up and
timed steps). What is left is the start of two processes, their rendezvous, building model and engine,
verification, and the end: an upper bound of what the launcher adds. The server is that of a sweep of so many
repeats: it has loaded what these trials need.
"""

import statistics
import time

from zbench.bench import results
from zbench.bench.trials import warm_runner
from zbench.launch.executor import targets_for
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
    with warm_runner(targets=targets_for([TRIAL] * repeats)) as runner:
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
    rows = []
    for name, values in seconds.items():
        bar = f"{BAR:.2f}" if name == "beyond_steps" else "-"
        figures = (statistics.median(values), min(values), max(values))
        rows.append([name.replace("_", " "), *(f"{figure:.3f}" for figure in figures), bar])
    figures_table = results.table(("seconds per trial", "median", "least", "most", "bar"), rows)
    return f"{figures_table}\n\n{len(seconds['wall'])} repeats."


def main() -> None:
    """Measure, print the table, and write it."""
    parser = results.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=25)
    given = parser.parse_args()
    seconds = measure(given.repeats)
    text = table(seconds)
    results.write(given.out, text, {"seconds": seconds})
    print(text)


if __name__ == "__main__":
    main()
