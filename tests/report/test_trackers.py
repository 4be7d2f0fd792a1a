"""Experiment trackers: each repeat is logged once with what distinguishes it; a failing one stops nothing."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

from tests.launch.conftest import make_trial
from zbench.errors import UsageError
from zbench.launch.events import Notice, TrialFinished
from zbench.masking import MASK
from zbench.record.record import Correctness, Failure, MemoryPeaks, Record, Timing
from zbench.report import trackers

TRIAL = make_trial(stage=1)
AXES = {"zero_stage": 1, "betas": [0.9, 0.95]}
GOOD = Record(
    *("run", TRIAL.trial_id, 0, AXES, TRIAL.config(), "ok"),
    timing=Timing([0.5, 0.25], 0.375, 100.0, 1.0),
    memory=MemoryPeaks(1000, None, 5000),
    correctness=Correctness("wrong", error_ratio=float("inf")),
)
BAD = replace(GOOD, repeat=1, outcome="crashed", error=Failure("crashed", "it fell over"), timing=None)


class Notes:
    """A tracker that keeps what it is told, and fails at the repeat called `fails_at`."""

    def __init__(self, fails_at: str = "") -> None:
        self.logged: list[str] = []
        self.records: list[Record] = []
        self.closed, self.fails_at = 0, fails_at

    def __call__(self, run_dir: Path, sweep: str) -> "Notes":
        self.made_with = (run_dir, sweep)
        return self

    def log(self, name: str, record: Record) -> None:
        if name == self.fails_at:
            raise ConnectionError("the server is away")
        self.logged.append(name)
        self.records.append(record)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def plugged(monkeypatch) -> dict[str, Notes]:
    """Return the trackers that are found as entry points, to be filled by the test."""
    plugins: dict[str, Notes] = {}

    def points(group: str) -> list[SimpleNamespace]:
        assert group == "zbench.trackers"
        return [SimpleNamespace(name=name, load=lambda it=it: it) for name, it in plugins.items()]

    monkeypatch.setattr(trackers, "entry_points", points)
    return plugins


def finish(tell, *records: Record) -> None:
    for record in records:
        tell(TrialFinished(TRIAL, record, 1.0, 0))


def test_each_repeat_is_logged_once_and_shown(plugged, tmp_path):
    notes = plugged["mine"] = Notes()
    shown: list[object] = []
    with trackers.following(["mine", "mine"], tmp_path, "tried", shown.append) as tell:
        tell(Notice("so far so good"))
        finish(tell, GOOD, BAD, replace(GOOD, repeat=2, outcome="invalid"))
    assert notes.logged == [f"{TRIAL.trial_id}-r0", f"{TRIAL.trial_id}-r1"]
    assert notes.made_with == (tmp_path, "tried")
    assert notes.closed == 1
    assert len(shown) == 4


def test_a_tracker_gets_no_secret(plugged, tmp_path):
    notes = plugged["mine"] = Notes()
    secret = replace(GOOD, config={"options": {"api_key": "aB3dE5gH7jK9"}})
    with trackers.following(["mine"], tmp_path, "tried", lambda event: None) as tell:
        finish(tell, secret)
    assert [record.config for record in notes.records] == [{"options": {"api_key": MASK}}]


def test_a_tracker_that_fails_is_told_and_left_out(plugged, tmp_path):
    ill, well = Notes(f"{TRIAL.trial_id}-r0"), Notes()
    plugged |= {"ill": ill, "well": well}
    shown: list[object] = []
    with trackers.following(["ill", "well"], tmp_path, "tried", shown.append) as tell:
        finish(tell, GOOD, BAD)
    assert ill.logged == []
    assert ill.closed == 0
    assert len(well.logged) == 2
    notices = [event.text for event in shown if isinstance(event, Notice)]
    assert notices == ["--log ill stopped: ConnectionError: the server is away"]


def test_a_missing_package_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(trackers.SHIPPED, "absent", "zbench.report.trackers.absent:Tracker")
    with pytest.raises(UsageError, match=r"pip install 'zbench\[absent\]'"):
        trackers.tracker_factory("absent")


def test_tensorboard_reads_what_was_logged(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with trackers.following(["tensorboard"], tmp_path, "tried", lambda _: None) as tell:
        finish(tell, GOOD, BAD)
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / f"{TRIAL.trial_id}-r0"))
    read.Reload()
    assert [event.value for event in read.Scalars("step_seconds")] == [0.5, 0.25]
    assert [(event.step, event.value) for event in read.Scalars("tokens_per_s")] == [(0, 100.0)]
    assert "_hparams_/session_start_info" in read.Tags()["tensors"]


def imported(monkeypatch, name: str, **modules: object) -> ModuleType:
    """Return a tracker's module, imported anew with stand-ins for the packages that it needs."""
    for package, stand_in in modules.items():
        monkeypatch.setitem(sys.modules, package.replace("__", "."), stand_in)
    monkeypatch.delitem(sys.modules, f"zbench.report.trackers.{name}", raising=False)
    module = importlib.import_module(f"zbench.report.trackers.{name}")
    monkeypatch.delitem(sys.modules, module.__name__)  # it holds the stand-ins
    return module


def test_wandb_gets_each_repeat_with_steps_and_exit_code(tmp_path, monkeypatch):
    wandb, good, bad = MagicMock(), MagicMock(), MagicMock()
    wandb.init.side_effect = [good, bad]
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    tracker = imported(monkeypatch, "wandb", wandb=wandb).WandbTracker(tmp_path, "tried")
    tracker.log("good", GOOD)
    tracker.log("bad", BAD)
    assert good.log.mock_calls == [call({"step_seconds": 0.5}, step=0), call({"step_seconds": 0.25}, step=1)]
    bad.log.assert_not_called()
    good.finish.assert_called_once_with(exit_code=0)
    bad.finish.assert_called_once_with(exit_code=1)
    settings = wandb.init.mock_calls[0].kwargs
    assert (settings["project"], settings["group"], settings["name"]) == ("tried", tmp_path.name, "good")
    assert settings["tags"] == ["wrong", "ok"]
    wandb.Settings.assert_called_with(silent=True)
    assert good.summary.update.mock_calls[0].args[0]["tokens_per_s"] == 100.0


def test_mlflow_gets_each_repeat_with_parent_and_status(tmp_path, monkeypatch):
    client = MagicMock()
    client.get_experiment_by_name.return_value = None
    client.create_run.side_effect = lambda experiment, *, run_name, tags: SimpleNamespace(
        info=SimpleNamespace(run_id=run_name)
    )
    status = SimpleNamespace(FINISHED=3, FAILED=4, to_string={3: "FINISHED", 4: "FAILED"}.get)
    module = imported(
        monkeypatch,
        "mlflow",
        mlflow=MagicMock(),
        mlflow__entities=SimpleNamespace(RunStatus=status),
        mlflow__tracking=SimpleNamespace(MlflowClient=lambda: client),
        mlflow__utils=MagicMock(),
        mlflow__utils__mlflow_tags=SimpleNamespace(MLFLOW_PARENT_RUN_ID="parent"),
    )
    tracker = module.MlflowTracker(tmp_path, "tried")
    tracker.log("good", GOOD)
    tracker.log("bad", BAD)
    tracker.close()
    ends = [call("good", "FINISHED"), call("bad", "FAILED"), call(tmp_path.name)]
    assert client.set_terminated.mock_calls == ends
    client.create_experiment.assert_called_once_with("tried")
    _, good, bad = client.create_run.mock_calls
    assert good.args == bad.args == (client.create_experiment.return_value,)
    assert good.kwargs["tags"]["parent"] == bad.kwargs["tags"]["parent"] == tmp_path.name
    steps = [one for one in client.log_metric.mock_calls if "step" in one.kwargs]
    assert steps == [call("good", "step_seconds", 0.5, step=0), call("good", "step_seconds", 0.25, step=1)]
