"""`--log mlflow`: one parent run for the sweep's run, a nested run for each repeat.

Where the runs go is MLflow's own business: MLFLOW_TRACKING_URI, else its default.
"""

from pathlib import Path

from mlflow.entities import RunStatus
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from zbench.record.record import Record
from zbench.report.trackers import figures, labels, parameters


class MlflowTracker:
    """Logs to the experiment that has the sweep's name."""

    def __init__(self, run_dir: Path, sweep: str) -> None:
        self._client = MlflowClient()
        experiment = self._client.get_experiment_by_name(sweep)
        self._experiment = experiment.experiment_id if experiment else self._client.create_experiment(sweep)
        about = {"zbench.run_dir": str(run_dir)}
        parent = self._client.create_run(self._experiment, run_name=run_dir.name, tags=about)
        self._parent: str = parent.info.run_id

    def log(self, name: str, record: Record) -> None:
        """Log the repeat as a finished run."""
        tags = labels(record) | {MLFLOW_PARENT_RUN_ID: self._parent}
        run = self._client.create_run(self._experiment, run_name=name, tags=tags).info.run_id
        for key, value in parameters(record).items():
            self._client.log_param(run, key, value)
        for key, number in figures(record).items():
            self._client.log_metric(run, key, number)
        for step, seconds in enumerate(record.timing.step_seconds if record.timing else ()):
            self._client.log_metric(run, "step_seconds", seconds, step=step)
        ended = RunStatus.FINISHED if record.outcome == "ok" else RunStatus.FAILED
        self._client.set_terminated(run, RunStatus.to_string(ended))

    def close(self) -> None:
        """End the parent run."""
        self._client.set_terminated(self._parent)
