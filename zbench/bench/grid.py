"""Record a full grid for the tuner's replay tests: every point of a sweep, each repeat in fresh processes.

    python -m zbench.bench.grid [--sweep FILE] [--resume] [--out FILE]

Runs `zbench sweep` (repeats interleaved over all points, in random order), then writes the records beside the
sweep file, where `tests/tune/replay` looks for them, and what they are like as .json and .md. After an
interruption `--resume` goes on with the last run.
"""

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.record import lines
from zbench.record.store import find_runs, load_records
from zbench.record.summary import ConfigSummary, best, summarize
from zbench.spec.load import load_sweep

SWEEP = Path("results/benchmarks/grid-gpt.yaml")
NEAR = 0.02
"""How far behind the best a point may be to count as found."""


def record(sweep: Path, output_dir: Path, *, resume: bool) -> Path:
    """Run what is missing of the sweep and return its run directory."""
    name = load_sweep(sweep).name
    command = [sys.executable, "-m", "zbench.cli.main", "sweep", str(sweep), "--output-dir", str(output_dir)]
    runs = find_runs(output_dir / name)
    last = ["--resume", str(max(runs, key=lambda path: path.name))] if resume and runs else []
    done = subprocess.run([*command, *last], check=False, stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"the sweep ended with {done.returncode}; go on with --resume")
    return max(find_runs(output_dir / name), key=lambda path: path.name)


def facts(summaries: Sequence[ConfigSummary], winner: ConfigSummary) -> dict[str, Any]:
    """Return what a search meets in this grid: its size, how many points are near the best, its noise."""
    rates = {s.trial_id: s.number("tokens_per_s") or 0.0 for s in summaries}
    top = rates[winner.trial_id]
    steps = [s.number("median_step_s") or 0.0 for s in summaries]
    noises = [spread for s in summaries if (spread := s.spread("tokens_per_s")) is not None]
    return {
        "points": len(summaries),
        "repeats": min(len(s.ok) for s in summaries),
        "best": winner.axes,
        "best_tokens_per_s": top,
        "worst_tokens_per_s": min(rates.values()),
        "points_within_2_percent": sum(rate >= (1 - NEAR) * top for rate in rates.values()),
        "points_within_10_percent": sum(rate >= 0.9 * top for rate in rates.values()),
        "shortest_step_s": min(steps),
        "longest_step_s": max(steps),
        "median_spread_of_repeats": statistics.median(noises) if noises else None,
        "records_under_load": sum(bool(record.warnings) for s in summaries for record in s.records),
        "verdicts": sorted({s.verdict for s in summaries}),
    }


def main() -> None:
    """Record, write, and print what was found."""
    parser = results.parser(__doc__)
    parser.add_argument("--sweep", type=Path, default=SWEEP, help=f"default: {SWEEP}")
    parser.add_argument("--output-dir", type=Path, default=Path("results"), help="where the run directory is")
    parser.add_argument("--resume", action="store_true", help="go on with the last run")
    given = parser.parse_args()
    out = (given.out or given.sweep).with_suffix(".jsonl")
    run = record(given.sweep, given.output_dir, resume=given.resume)
    records = [one for one in load_records(run) if one.outcome != "invalid"]
    summaries, objective = summarize(records), load_sweep(given.sweep).objective
    winner = best(summaries, objective)
    if winner is None or any(s.outcome != "ok" for s in summaries):
        sys.exit(f"some points did not end well, so this is no grid: zbench show {run}")
    # the sweep file beside the records says what a configuration holds but for its axes
    out.write_bytes(b"".join(lines.encode(replace(one, config={}, run_id=out.stem)) for one in records))
    found = facts(summaries, winner)
    text = results.table(("recorded grid", ""), found.items())
    results.write(out, text, {"grid": found})
    print(text)


if __name__ == "__main__":
    main()
