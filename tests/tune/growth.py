"""How the cost of one more trial grows with those in the study: `python -m tests.tune.growth --trials 5000`.

A real PostgreSQL server, fake trials. CPU time of the worker per trial, by what it does: read the study, ask
the sampler, take the point, store the result. The first read of a worker that joins is shown apart.
"""

import argparse
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import create_trial

from zbench.estimate.client import Simulator
from zbench.record import lines
from zbench.record.store import RunDirectory
from zbench.spec.sweep import sweep_document
from zbench.spec.trial import TrialSpec
from zbench.tune.session import SearchTask, Session
from zbench.tune.study import Search

from . import postgres
from .fakes import SMALL_AXES, Ear, FakeRunner, small_sweep

STEPS = 3
PARTS = ("read", "sampler", "take", "store")


def main() -> None:
    """Fill a study step by step and print a line of CPU milliseconds per trial at each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--method", default="tpe")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(f"| trials | {' | '.join(PARTS)} | in all | first read |")
    print("| --- " * (len(PARTS) + 3) + "|")
    with postgres.running() as server:
        for line in grow(server.url, options.trials, options.every, options.method):
            print(line, flush=True)


def grow(url: str, trials: int, every: int, method: str) -> Any:
    """Yield a line of the table at each size."""
    axes = SMALL_AXES | {"reduce_bucket_size": {"low": 1000, "high": 100_000_000, "log": True}}
    sweep = small_sweep(axes=axes, search={"method": method, "trials": 10 * trials})
    have = 0
    for size in [10, *range(every, trials + 1, every)]:
        with (
            tempfile.TemporaryDirectory() as home,
            RunDirectory.create(
                Path(home), "growth", spec=sweep_document(sweep), environment={"schema_version": 1}
            ) as directory,
            Simulator(Path(home), jobs=1) as simulator,
        ):
            task = SearchTask(sweep, Path(home), {"fingerprint": "alike"}, url, "growth", is_worker=True)
            session = Session(task, directory, FakeRunner(), Ear())
            fill(session, size - have, seed=size)
            have = size + STEPS + 1
            search = Search(session._setup(simulator), session._ledger, session._evaluate, session)
            first, _ = cpu(session._ledger.entries)
            measured = [one_trial(session, search) for _ in range(STEPS + 1)][1:]
        parts = [sum(values) / STEPS for values in zip(*measured, strict=True)]
        cells = [f"{1e3 * value:.1f}" for value in (*parts, sum(parts), first)]
        yield f"| {size:,} | {' | '.join(cells)} |"


def fill(session: Session, count: int, seed: int) -> None:
    """Store finished trials as workers leave them; their figures are drawn at random."""
    ledger, space, draw = session._ledger, session._space, random.Random(seed)
    study, now = ledger._study, datetime.now()
    trial = space.trial(space.base_point())
    assert isinstance(trial, TrialSpec)
    record = FakeRunner().run(trial)
    for number in range(count):
        offloaded = draw.choice(("none", "cpu"))
        values = {"zero_stage": draw.choice((1, 2)), "offload_optimizer": offloaded}
        point = space.canonical({**values, "reduce_bucket_size": int(10 ** draw.uniform(3, 8))})
        params, distributions = space.encode(point) or ({}, {})
        attributes = {
            "worker": ledger.worker.to_json(),
            "host": ledger.worker.fingerprint,
            "trial_id": f"{seed:06}{number:06}",
            "notes": {},
            "point": point,
            "records": [lines.jsonable(record)],
        }
        ended = create_trial(
            values=[draw.uniform(100, 1000)],
            params=params,
            distributions=distributions,
            user_attrs=attributes,
        )
        ended.datetime_start = ended.datetime_complete = now
        study._storage.create_new_trial(study._study_id, template_trial=ended)


def one_trial(session: Session, search: Search) -> list[float]:
    """Return the CPU seconds of each part of one more trial."""
    ledger = session._ledger

    def read() -> Any:
        ledger.reap()
        return ledger.entries()

    reading, entries = cpu(read)
    history = [entry.observation for entry in entries]
    asking, proposal = cpu(lambda: search._propose(entries, history))
    assert proposal is not None
    trial = session._space.trial(proposal.point)
    assert isinstance(trial, TrialSpec)
    taking, ticket = cpu(lambda: ledger.begin(proposal.point, trial.trial_id, proposal.notes))
    assert ticket is not None
    record = session._runner.run(trial)
    storing, stored = cpu(lambda: ledger.finish(ticket, [record]))
    assert stored
    return [reading, asking, taking, storing]


def cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and what it returned."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


if __name__ == "__main__":
    main()
