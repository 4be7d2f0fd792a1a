"""What happens inside the processes of a command in a run that is not timed, and what they report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from zbench import _nudge


@dataclass(frozen=True, slots=True)
class OptimizerWatch:
    """Watches the optimizers of a command's Python processes (`zbench/_nudge.py`).

    units: by how many units in the last place weights are nudged.
    """

    units: int = 0

    def folder(self, scratch: Path) -> Path:
        """Return a new directory that every Python of the command is to see first."""
        folder = scratch / "inside"
        folder.mkdir(parents=True)
        (folder / "sitecustomize.py").symlink_to(_nudge.__file__)
        return folder

    def variables(self, scratch: Path, checkpoint: Path | None) -> dict[str, str]:
        """Return the variables of the environment that `sitecustomize` reads."""
        (scratch / "reports").mkdir()
        variables = {"ZBENCH_NUDGE_UNITS": str(self.units), "ZBENCH_REPORT_DIR": str(scratch / "reports")}
        return variables if checkpoint is None else variables | {"ZBENCH_CHECKPOINT": str(checkpoint)}


@dataclass(frozen=True, slots=True)
class Training:
    """What the processes of a command reported of their training.

    way: the root mean square of the distances that weights travelled; None if no process reported any.
    firsts: `_nudge.key_of` a tensor's last values -> its first values. steps: optimizer steps.
    missed_steps: how many of them the checkpoint lacks. roundoff: of the dtype in which autocast computed.
    mixing: the class of a layer with which a loss is no mean over samples; empty if there is none.
    """

    way: float | None = None
    firsts: Mapping[tuple[int, int, int], Tensor] = field(default_factory=dict)
    steps: int = 0
    missed_steps: int = 0
    roundoff: float = 0.0
    mixing: str = ""

    def first_of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return name -> first values, of the weights that are the last values of a trained tensor."""
        keys = {name: _nudge.key_of(value) for name, value in weights.items()}
        return {
            name: self.firsts[key].float().reshape(weights[name].shape)
            for name, key in keys.items()
            if key in self.firsts
        }


def training_in(scratch: Path) -> Training:
    """Return what the processes of a command reported into the folder of a watch."""
    reports = [torch.load(file, weights_only=True) for file in sorted((scratch / "reports").glob("*.pt"))]
    if not reports:
        return Training()
    elements = sum(report["elements"] for report in reports)
    way = (sum(report["squares"] for report in reports) / elements) ** 0.5 if elements else None
    firsts = {tuple(key): first for report in reports for first, key in report["firsts"]}
    steps = max(report["steps"] for report in reports)
    missed = min((report["missed_steps"] for report in reports if report["steps"]), default=0)
    roundoff = max(report["roundoff"] for report in reports)
    mixing = next((report["mixing"] for report in reports if report["mixing"]), "")
    return Training(way, firsts, steps, missed, roundoff, mixing)
