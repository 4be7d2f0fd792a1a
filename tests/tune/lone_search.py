"""A search in its own process, to be killed: `python -m tests.tune.lone_search DIRECTORY TRIALS SECONDS`."""

import sys
from pathlib import Path

from zbench.record.store import RunDirectory, find_runs
from zbench.spec.sweep import sweep_document
from zbench.tune.session import SearchTask, Session

from .fakes import FakeRunner, small_sweep

FACTS = {"fingerprint": "kind"}


def main(home: Path, trials: int, seconds: float) -> str | None:
    """Begin the search in `home`, or go on with the one that is there; return the best trial's id."""
    sweep = small_sweep(search={"method": "tpe", "trials": trials, "patience": 99})
    runs = find_runs(home)
    if runs:
        directory = RunDirectory.open(runs[0])
    else:
        directory = RunDirectory.create(home, "small", spec=sweep_document(sweep), environment=FACTS)
    with directory:
        runner = FakeRunner(seconds=seconds, log=home / "log")
        found = Session(SearchTask(sweep, home, FACTS), directory, runner, lambda _: None).run()
    return found.final.best.trial_id if found.final.best else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
