"""The first steps on a GPU run under torch's deterministic algorithms, so that their bits can be compared.

A GPU adds in no fixed order where that is faster, as the backward of fused attention does by atomics: two
runs of one training then differ, and bits do not show whether an engine is right. So on a GPU some steps come
before the warm-up in which reference and trial take torch's deterministic algorithms; they decide
`identical`. Every step after them runs as users train, and is judged by distance and replay.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import torch

from zbench.spec.trial import TrialSpec

T = TypeVar("T")
STEPS = 3
"""From the second one on, moments and what a step leaves behind count, too."""

_REFUSAL = re.compile(r"([^'\"\n]+) does not have a deterministic implementation|uses (CuBLAS) and")


def steps_on(device: torch.device) -> int:
    """Return how many deterministic steps a reference begins with: none on a CPU, which adds in one order."""
    return 0 if device.type == "cpu" else STEPS


class Determinism:
    """Which algorithms the steps of a run take: the first `steps` take deterministic ones. A trial takes as
    many as its reference, none without one.

    warnings: name an operation that has no deterministic form. The first steps then run with what has one, in
    which torch does not count fused attention.
    """

    def __init__(self, steps: int, warnings: list[str]) -> None:
        self.steps, self.warnings = steps, warnings
        self._usual: int | None = None

    def lengthened(self, trial: TrialSpec) -> TrialSpec:
        """Return a trial with these steps before its warm-up."""
        run = trial.run.model_copy(update={"warmup_steps": self.steps + trial.run.warmup_steps})
        return trial.model_copy(update={"run": run})

    def begin(self, step: int) -> None:
        """Choose the algorithms of `step` (from 0), which comes next; later steps take the process's own."""
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
            refusal = _REFUSAL.search(str(error))
            if self.warnings or refusal is None:
                raise
            name = (refusal[1] or refusal[2]).strip()
        self.warnings = [f"not deterministic: torch has no deterministic form of {name}, so bits may differ"]
        self.begin(0)
        return run()
