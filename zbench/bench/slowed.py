"""A worker whose steps take 5 % longer (or another share), which a comparison must detect.

The launcher is given it as the target of the rank processes (`zbench.bench.slowed:run_rank`), so the trial
itself is the same. Each step is followed by busy waiting for that share of its own duration.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from zbench.worker import main
from zbench.worker.job import RankJob
from zbench.worker.loop import Trainer

SHARE = 0.05
VARIABLE = "ZBENCH_BENCH_SLOWED"
"""Environment variable that names another share; it must be set before the trials' server starts."""


def run_rank(job: RankJob) -> None:
    """Run one rank of a trial, slowed; no other trial runs in this process."""
    share = float(os.environ.get(VARIABLE, SHARE))
    Trainer.step = lengthened(Trainer.step, share)  # type: ignore[method-assign]
    main.run_rank(job)


def lengthened(step: Callable[..., Any], share: float = SHARE) -> Callable[..., Any]:
    """Return a function that does what `step` does, in `1 + share` times as long."""

    def slower(*arguments: Any) -> Any:
        begin = time.perf_counter()
        found = step(*arguments)
        end = begin + (1 + share) * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        return found

    return slower
