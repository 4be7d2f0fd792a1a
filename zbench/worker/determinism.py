"""The first steps on a GPU run under torch's deterministic algorithms, so that their bits can be compared.

Fast GPU algorithms add in no fixed order: the backward of fused attention uses atomics, for instance. Two
runs of one training then differ, so equal bits cannot be the criterion. So on a GPU, reference and trial
begin, before the warm-up, with some steps of torch's deterministic algorithms; these decide `identical`. All
later steps run as users train, and are verified by distance and replay.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import torch

from zbench.spec.trial import TrialSpec

T = TypeVar("T")
STEPS = 3
"""From the second one on, moments and what a step leaves behind count, too."""

_NO_FORM, _CUBLAS = " does not have a deterministic implementation", "uses CuBLAS and"
_BEFORE_A_NAME = re.compile("['\"\n]")


def steps_on(device: torch.device) -> int:
    """Return the number of deterministic steps of a reference: none on a CPU, which adds in a fixed order."""
    return 0 if device.type == "cpu" else STEPS


class Determinism:
    """Makes the first `steps` steps of a run use deterministic algorithms: as many as its reference has,
    none without a reference.

    warnings: name an operation that has no deterministic form. All other operations stay deterministic in the
    first steps, except fused attention, which torch does not count among them.
    """

    def __init__(self, steps: int, warnings: list[str]) -> None:
        self.steps, self.warnings = steps, warnings
        self._usual: int | None = None

    def lengthened(self, trial: TrialSpec) -> TrialSpec:
        """Return a trial with these steps before its warm-up."""
        run = trial.run.model_copy(update={"warmup_steps": self.steps + trial.run.warmup_steps})
        return trial.model_copy(update={"run": run})

    def begin(self, step: int) -> None:
        """Choose the algorithms of the next step, `step` (from 0); later steps use the process's own."""
        if step > self.steps or self.steps == 0:
            return
        if self._usual is None:
            self._usual = torch.get_deterministic_debug_mode()
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        mode = "warn" if self.warnings else "error"
        torch.set_deterministic_debug_mode(mode if step < self.steps else self._usual)

    def retried(self, run: Callable[[], T]) -> T:
        """Return what `run` does; if torch refuses an operation there, note which, and run once more."""
        try:
            return run()
        except RuntimeError as error:
            name = _refused_operation(str(error))
            if self.warnings or name is None:
                raise
        self.warnings = [f"not deterministic: torch has no deterministic form of {name}, so bits may differ"]
        self.begin(0)
        return run()


def _refused_operation(text: str) -> str | None:
    """Return the operation that an error of torch says has no deterministic form; None for another error.

    A user's error can have a long text: each character is read once.
    """
    before, words, _ = text.partition(_NO_FORM)
    if words:
        return _BEFORE_A_NAME.split(before)[-1].strip()
    return "CuBLAS" if _CUBLAS in text else None
