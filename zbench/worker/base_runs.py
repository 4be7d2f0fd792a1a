"""The runs of the configuration that a command's trials are compared with, and what they show."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from zbench.job.jobs import ReferenceJob
from zbench.spec.trial import TrialSpec
from zbench.verify.limits import ROUGH_TIMES
from zbench.verify.weights import Base, same_bits, save_base
from zbench.worker.process import Progress
from zbench.worker.script import run_once
from zbench.worker.watching import OptimizerWatch, Training, training_in

NUDGED_UNITS = 8
"""Units in the last place. The sum of a convolution or a matrix product rounds many times, a weight once."""
_MOST_RUNS = 4


def run_base(job: ReferenceJob, trial: TrialSpec) -> None:
    """Run the configuration to compare a command's trial with, twice, and save the weights of both runs.

    The first run also tells from where and how far the weights travelled. If both runs end with the same
    bits, a run with added rounding errors replaces the second one, and a run with larger ones shows whether a
    training jumps. A more precise run (`verify.precise`) takes the place of both.
    """
    base = trial.held_against()
    precise = base.precise_run()
    scratch = Path(f"{job.reference_path}.script")
    with Progress(job.progress_path) as progress:

        def run(
            number: int, units: int = 0, configuration: TrialSpec = base
        ) -> tuple[Mapping[str, Tensor], Training]:
            shutil.rmtree(scratch, ignore_errors=True)
            watch = OptimizerWatch(units)
            outcome = run_once(configuration, Path(job.base_dir), scratch, lambda *_: None, watch=watch)
            progress.step("reference", number, _MOST_RUNS)
            return outcome.weights(), training_in(scratch)

        try:
            first, training = run(1)
            again = first if base.verify.base_runs == 1 else run(2)[0]
            kept = Base(
                first,
                again,
                first=training.first_of(first),
                way=training.way,
                is_repeatable=same_bits(first, again),
                obstacle=_obstacle(training, base.verify.base_runs),
                roundoff=training.roundoff,
                mixing=training.mixing,
            )
            if precise is not None and kept.obstacle is None:
                kept = replace(kept, precise=run(3, configuration=precise)[0])
            elif kept.is_repeatable and kept.obstacle is None:
                nudged, rough = run(3, NUDGED_UNITS)[0], run(4, ROUGH_TIMES * NUDGED_UNITS)[0]
                kept = replace(kept, yardstick=None if same_bits(first, nudged) else nudged, rough=rough)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    save_base(kept, Path(job.reference_path))


def _obstacle(training: Training, base_runs: int) -> str | None:
    """Return why no trial can be compared with a base, with the remedy; None if it can."""
    if base_runs == 1:
        return (
            "the base ran once (verify.base_runs: 1), so nothing says whether the script repeats itself: set"
            " verify.base_runs: 2"
        )
    if not training.missed_steps:
        return None
    return (
        f"the checkpoint lacks the last {training.missed_steps} of {training.steps} optimizer steps: save it"
        " after the last step"
    )
