"""A search, or a worker of a shared study, in a process of its own: `python -m tests.tune.lone JSON`."""

import json
import sys
from pathlib import Path
from typing import Any

from .fakes import SMALL_AXES, UNHURRIED, FakeMachine, searched


def main(
    home: str,
    log: str,
    seconds: float,
    search: dict[str, Any],
    buckets: int = 0,
    url: str | None = None,
    study: str | None = None,
) -> str | None:
    """Search in `home`, or go on with the search that is there; return the best trial's id.

    buckets: how many sizes the space has where not 3. With a url: a worker of the study.
    """
    sizes = {"reduce_bucket_size": [10_000 * (n + 1) for n in range(buckets)]} if buckets else {}
    task = {"storage": url, "study": study, "is_worker": url is not None, "heartbeat": UNHURRIED}
    machine = FakeMachine(seconds=seconds, log=Path(log))
    search_of_all = searched(Path(home), machine, task=task, search=search, axes=SMALL_AXES | sizes)
    best = search_of_all.outcome.final.best
    return best.trial_id if best else None


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
