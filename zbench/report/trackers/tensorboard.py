"""`--log tensorboard`: event files below the run directory, one run of the HPARAMS tab for each repeat."""

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from zbench.record.record import Record
from zbench.report.trackers import figures, labels, parameters


class TensorboardTracker:
    """Writes `<run directory>/tensorboard/<repeat>/`; see it with `tensorboard --logdir`."""

    def __init__(self, run_dir: Path, sweep: str) -> None:
        self._directory = run_dir / "tensorboard"

    def log(self, name: str, record: Record) -> None:
        """Write the repeat's parameters, its figures, and the time of each timed step."""
        writer = EventFileWriter(str(self._directory / name))
        now = time.time()
        about = parameters(record) | labels(record)
        writer.add_event(Event(wall_time=now, summary=summary_v2.hparams_pb(about, trial_id=name)))
        for tag, value in figures(record).items():
            writer.add_event(Event(wall_time=now, step=0, summary=_scalar(tag, value)))
        for step, seconds in enumerate(record.timing.step_seconds if record.timing else ()):
            writer.add_event(Event(wall_time=now, step=step, summary=_scalar("step_seconds", seconds)))
        writer.close()

    def close(self) -> None:
        """Do nothing: each repeat's file is complete once it is logged."""


def _scalar(tag: str, value: float) -> Summary:
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])
