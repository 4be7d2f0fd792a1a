"""`--log wandb`: one run of Weights & Biases for each repeat, grouped by the sweep's run.

Where the runs go is wandb's own business: WANDB_PROJECT, WANDB_MODE=offline and its other variables.
"""

import os
from pathlib import Path

import wandb

from zbench.record.record import Record
from zbench.report.trackers import figures, labels, parameters


class WandbTracker:
    """Logs to WANDB_PROJECT, or to the project that has the sweep's name."""

    def __init__(self, run_dir: Path, sweep: str) -> None:
        self._group, self._directory = run_dir.name, run_dir
        self._project = os.environ.get("WANDB_PROJECT", sweep)

    def log(self, name: str, record: Record) -> None:
        """Log the repeat as a finished run; its figures are the run's summary."""
        words = labels(record)
        run = wandb.init(
            project=self._project,
            group=self._group,
            name=name,
            dir=self._directory,
            config=parameters(record) | words,
            tags=[words["verdict"], words["outcome"]],
            settings=wandb.Settings(silent=True),
            reinit="finish_previous",
        )
        for step, seconds in enumerate(record.timing.step_seconds if record.timing else ()):
            run.log({"step_seconds": seconds}, step=step)
        run.summary.update(figures(record) | words)
        run.finish(exit_code=0 if record.outcome == "ok" else 1)

    def close(self) -> None:
        """Do nothing: each repeat's run is finished once it is logged."""
