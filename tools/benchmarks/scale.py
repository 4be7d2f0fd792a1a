"""What large sweeps, many runs and one more trial cost beside the steps, with the bars they meet.

    python -m tools.benchmarks.scale [--configurations 5000] [--runs 3000] [--trials 25] [--out FILE]

Makes a sweep file, finished runs of it and a directory of small runs, and calls `zbench` on them in processes
of their own: CPU time and peak memory. A resume finds every repeat done, so what it costs is reading, ranking
and printing. What each choice costs is shown of all, in rounds and in heats that overlap: the records,
the table of their times and the document are in memory at once, so that bar is higher. A trial of a tiny
model on 2 ranks costs its wall time less the time of all its steps: the start of two processes, their
rendezvous, building model and engine, verification, and the end.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tools.benchmarks import results
from tools.benchmarks.trials import warm_runner
from zbench.spec.trial import TrialSpec

if TYPE_CHECKING:
    from zbench.record.record import Record

MIB = 1 << 20
HEAT = 8  # repeats, as many as a sweep's own
SHOWN = 500_000_000  # bytes: the records, a table of all, and the document
COLUMNS = ("command", "CPU", "bar", "peak memory", "bar", "")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took: seconds of CPU (children included) and peak resident bytes, and its bars."""

    name: str
    cpu_s: float
    peak_bytes: int
    most_s: float
    most_bytes: int = 200_000_000

    @property
    def is_met(self) -> bool:
        """Whether both bars are met."""
        return self.cpu_s <= self.most_s and self.peak_bytes <= self.most_bytes

    def row(self) -> list[str]:
        """Return a row of the table."""
        times = [f"{self.cpu_s:.2f} s", f"{self.most_s:.1f} s"]
        sizes = [f"{size / MIB:.0f} MiB" for size in (self.peak_bytes, self.most_bytes)]
        return [self.name, *times, *sizes, "" if self.is_met else "missed"]


def write_sweep(path: Path, configurations: int) -> Path:
    """Write a sweep of so many configurations and two repeats."""
    sweep = {
        "name": "scale",
        "workload": {"model": "mlp", "data": {"synthetic": True}},
        "run": {"world_size": 2, "repeats": 2},
        "axes": {
            "reduce_bucket_size": [10_000 + n for n in range((configurations + 1) // 2)],
            "zero_stage": [1, 2],
        },
    }
    path.write_text(json.dumps(sweep))
    return path


def write_run(
    sweep_file: Path,
    output_dir: Path,
    run_id: str,
    steps: int = 20,
    *,
    in_heats: bool = False,
    **environment: object,
) -> Path:
    """Write a finished run of a sweep: every repeat with its samples and verdict, step times drawn."""
    from zbench.record import lines
    from zbench.record.record import Correctness, MemoryPeaks, Record, Timing
    from zbench.record.store import END, TRIALS, RunDirectory
    from zbench.spec.expand import expand
    from zbench.spec.load import load_sweep
    from zbench.spec.sweep import sweep_document

    sweep = load_sweep(sweep_file)
    draw = random.Random(run_id)
    invocation = {"sweep_file": str(sweep_file), "base_dir": str(sweep_file.parent)}
    about = {"invocation": invocation, **environment}
    with RunDirectory.create(
        output_dir, sweep.name, spec=sweep_document(sweep), environment=about, run_id=run_id
    ) as directory:
        records: list[Record] = []
        for trial in expand(sweep).trials:
            step = 0.1 * draw.lognormvariate(0, 0.2)
            record = Record(
                run_id, trial.trial_id, 0, trial.axes, trial.config(), "ok",
                memory=MemoryPeaks(draw.randrange(1 << 20, 1 << 30), 0, 1 << 28, {"parameters": 1 << 20}),
                correctness=Correctness("identical", 1.0, 0.0, 0),
            )  # fmt: skip
            for repeat in range(sweep.run.repeats):
                samples = [step * draw.lognormvariate(0, 0.02) for _ in range(steps)]
                median = sorted(samples)[steps // 2]
                timing = Timing(samples, median, 1000 / median, 10 / median)
                records.append(replace(record, repeat=repeat, timing=timing))
    kept = in_drawn_heats(records, draw) if in_heats else records
    (directory.path / TRIALS).write_bytes(lines.encode_all(kept))
    (directory.path / END).unlink()  # it is of the lines that were appended one by one: none
    return directory.path


def in_drawn_heats(records: Sequence["Record"], draw: random.Random) -> Iterator["Record"]:
    """Yield the repeats of each round in heats of two turns beside plain PyTorch, drawn anew each round."""
    from zbench.record.record import Heat

    for number in sorted({record.repeat for record in records}):
        of_round = [record for record in records if record.repeat == number]
        draw.shuffle(of_round)
        for first in range(0, len(of_round), HEAT):
            alone = [0.05 * draw.lognormvariate(0, 0.02) for _ in range(2)]
            for record in of_round[first : first + HEAT]:
                assert record.timing is not None
                steps = record.timing.step_seconds
                half = len(steps) // 2
                turns = [statistics.mean(steps[:half]), statistics.mean(steps[half:])]
                yield replace(record, heat=Heat(f"{number} {first}", turns, alone))


def cost_of(name: str, words: Sequence[str], most_s: float) -> Cost:
    """Run a `zbench` command and return what it cost; RuntimeError if it fails.

    A small process stands between: the peak of a child counts what its parent held when it was forked.
    """
    code = (
        "import os, resource, sys\n"
        "pid = os.posix_spawn(sys.executable, [sys.executable, '-m', 'zbench.cli.main', *sys.argv[1:]],"
        " os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])\n"
        "_, status, usage = os.wait4(pid, 0)\n"
        "print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *words], capture_output=True, text=True, check=True
    )
    status, seconds, kilobytes = done.stdout.split()
    if status != "0":
        raise RuntimeError(f"zbench {' '.join(words)} ended with {status}: {done.stderr[-500:]}")
    return Cost(name, float(seconds), int(kilobytes) * 1024, most_s)


def cost_of_publishing(home: Path, runs: int) -> Iterator[Cost]:
    """Yield what a site of so many runs of 50 configurations costs, the first time and once more."""
    sweep = write_sweep(home / "fifty.json", 50)
    words = ["publish", str(home / "fifty"), "--to", str(home / "site")]
    for number in range(runs):
        write_run(
            sweep, home / "fifty", f"run-{number:05}", machine={"cpu": "any"}, git={"commit": f"{number:040}"}
        )
    yield replace(cost_of(f"publish of {runs:,} runs of 50 configurations", words, 60.0), most_bytes=10**9)
    yield replace(cost_of("the same again, where nothing is new", words, 30.0), most_bytes=10**9)
    largest = max((home / "site").rglob("*.html"), key=lambda page: page.stat().st_size)
    if largest.stat().st_size > MIB:
        raise RuntimeError(f"{largest.name} has {largest.stat().st_size:,} bytes, more than 1 MiB")


def costs(home: Path, configurations: int, runs: int) -> Iterator[Cost]:
    """Yield what each command costs."""
    large, small = write_sweep(home / "large.json", configurations), write_sweep(home / "small.json", 4)
    yield cost_of(f"plan of {configurations:,} configurations", ["plan", str(large)], 5.0)
    run = write_run(large, home / "large", "one")
    again = ["sweep", "--resume", str(run), "-o", str(home / "large"), "-q"]
    for name, words in (("resume", again), ("show", ["show", str(run)])):
        yield replace(cost_of(f"{name} of {configurations:,} configurations", words, 5.0), most_bytes=SHOWN)
    heats = write_run(large, home / "heats", "one", in_heats=True)
    for way, path in (("rounds", run), ("heats", heats)):
        name = f"show --json of {2 * configurations:,} records in {way}"
        yield replace(cost_of(name, ["show", str(path), "--json"], 10.0), most_bytes=SHOWN)
    for number in range(runs):
        write_run(small, home / "small", f"run-{number:05}")
    for command, bar in (("list", 9.0), ("history", 15.0)):
        cost = cost_of(f"{command} of {runs:,} runs", [command, "-o", str(home / "small")], bar)
        yield replace(cost, most_bytes=150_000_000)
    yield cost_of("show of a small run", ["show", "last", "-o", str(home / "small")], 0.6)
    yield cost_of("list of one run", ["list", "-o", str(home / "large")], 0.6)
    yield cost_of("--help", ["--help"], 0.3)
    yield from cost_of_publishing(home, runs)


TRIAL = TrialSpec.model_validate(
    {
        "workload": {"model": "mlp"},
        "run": {"world_size": 2, "steps": 3, "warmup_steps": 1},
        "engine": {"zero_stage": 1},
    }
)
TRIAL_BAR = 0.30


def beyond_steps(trials: int) -> list[float]:
    """Return the seconds of each trial beyond its steps."""
    seconds = []
    with warm_runner() as runner:
        runner.run(TRIAL)  # computes the reference
        for repeat in range(trials):
            begin = time.monotonic()
            record = runner.run(TRIAL, repeat=repeat)
            wall = time.monotonic() - begin
            assert record.timing is not None, record.error
            steps = TRIAL.run.steps + TRIAL.run.warmup_steps
            seconds.append(wall - statistics.mean(record.timing.step_seconds) * steps)
    return seconds


def main() -> None:
    """Measure and print the tables; exit with 1 where a bar is missed."""
    parser = results.parser(__doc__)
    parser.add_argument("--configurations", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--trials", type=int, default=25)
    given = parser.parse_args()
    measured: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="zbench-scale-") as home:
        for cost in costs(Path(home), given.configurations, given.runs):
            measured.append(cost)
            results.say(cost.row())
    beyond = beyond_steps(given.trials)
    median = statistics.median(beyond)
    row = (f"{median:.3f}", f"{min(beyond):.3f}", f"{max(beyond):.3f}", f"{TRIAL_BAR:.2f}")
    text = "\n\n".join(
        [
            results.table(COLUMNS, [cost.row() for cost in measured]),
            results.table(("a trial beyond its steps, s", "least", "most", "bar"), [row]),
        ]
    )
    print(text)
    document = [{"name": c.name, "cpu_s": c.cpu_s, "peak": c.peak_bytes} for c in measured]
    results.write(given.out, text, {"costs": document, "beyond_steps": beyond})
    sys.exit(0 if median <= TRIAL_BAR and all(cost.is_met for cost in measured) else 1)


if __name__ == "__main__":
    main()
