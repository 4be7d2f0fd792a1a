"""Which of the user's files a trial reads: its model, its data, its script."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from zbench.record.inputs import inputs
from zbench.spec import shapes
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import WorkloadSpec
from zbench.workloads.data import DatasetBatches
from zbench.workloads.workload import Data


def inputs_of(trial: TrialSpec, base_dir: Path, data: Data | None = None) -> dict[str, str]:
    """Return name -> digest of every file, and the fingerprint of a dataset. See `record.inputs.inputs`.

    Call it when the model has been made, and before a step: what is edited later was not read.
    """
    found = inputs(_named(trial.workload, base_dir), base_dir)
    if isinstance(data, DatasetBatches):
        found |= {str(trial.workload.data.dataset): data.fingerprint}
    return found


def _named(spec: WorkloadSpec, base_dir: Path) -> Iterator[Path]:
    if spec.data.text is not None:
        yield base_dir / spec.data.text
    if spec.model.startswith(shapes.PREFIX):
        config = shapes.config_file(spec.model.removeprefix(shapes.PREFIX), base_dir)
        yield from [] if config is None else [config]
    for word in [] if spec.command is None else shlex.split(spec.command):
        if (base_dir / word).is_file():
            yield base_dir / word
