"""One worker of a shared study in its own process, for tests: `python -m tests.tune.lone_worker JSON`."""

import json
import socket
import sys
from pathlib import Path

from zbench.record.store import RunDirectory
from zbench.spec.sweep import sweep_document
from zbench.tune.session import SearchTask, Session
from zbench.tune.storage import Heartbeat

from .fakes import SMALL_AXES, FakeRunner, small_sweep


def main(job: dict[str, str]) -> None:
    """Work until the study is done.

    job: url, host (a made-up host's name), home (directory), fingerprint; buckets: how many sizes the space
    has; grace: seconds after which a worker without a sign of life is given up.
    """
    socket.gethostname = lambda: job["host"]  # so that only heartbeats tell the others whether this one lives
    axes = dict(SMALL_AXES)
    if "buckets" in job:
        axes["reduce_bucket_size"] = [10_000 * (n + 1) for n in range(int(job["buckets"]))]
    sweep = small_sweep(search={"method": job.get("method", "grid")}, axes=axes)
    environment = {"fingerprint": job["fingerprint"], "schema_version": 1}
    home = Path(job["home"])
    directory = RunDirectory.create(home, sweep.name, spec=sweep_document(sweep), environment=environment)
    task = SearchTask(
        sweep,
        home,
        environment,
        job["url"],
        job["study"],
        is_worker=True,
        heartbeat=Heartbeat(1, int(job.get("grace", 3))),
    )
    runner = FakeRunner(seconds=float(job["seconds"]), log=Path(job["log"]))
    with directory:
        Session(task, directory, runner, lambda _: None).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
