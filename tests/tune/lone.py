"""A search, or a worker of a shared study, in a process of its own: `python -m tests.tune.lone JSON`."""

import json
import sys
from pathlib import Path
from typing import Any

from zbench.record.store import RunDirectory, find_runs
from zbench.spec.sweep import sweep_document
from zbench.tune.session import SearchTask, Session
from zbench.tune.storage import Heartbeat

from .fakes import SMALL_AXES, FakeRunner, small_sweep


def main(
    home: str,
    log: str,
    seconds: float,
    search: dict[str, Any],
    buckets: int = 0,
    fingerprint: str = "alike",
    url: str | None = None,
    study: str | None = None,
    grace: int = 3,
) -> str | None:
    """Search in `home`, or go on with the search that is there; return the best trial's id.

    buckets: how many sizes the space has where not 3. With a url: a worker of the study, given up after
    `grace` seconds without a sign of life.
    """
    sizes = {"reduce_bucket_size": [10_000 * (n + 1) for n in range(buckets)]} if buckets else {}
    sweep = small_sweep(search=search, axes=SMALL_AXES | sizes)
    facts = {"fingerprint": fingerprint, "schema_version": 1}
    runs = find_runs(Path(home))
    if runs:
        directory = RunDirectory.open(runs[0])
    else:
        directory = RunDirectory.create(Path(home), "small", spec=sweep_document(sweep), environment=facts)
    heartbeat = Heartbeat(1, grace)
    task = SearchTask(sweep, Path(home), facts, url, study, is_worker=url is not None, heartbeat=heartbeat)
    with directory:
        runner = FakeRunner(seconds=seconds, log=Path(log))
        found = Session(task, directory, runner, lambda _: None).run()  # type: ignore[arg-type]
    return found.final.best.trial_id if found.final.best else None


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
