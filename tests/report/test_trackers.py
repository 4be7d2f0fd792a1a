"""Experiment trackers: each repeat is logged once with what distinguishes it; a failing one stops nothing."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.launch.conftest import make_trial
from zbench.errors import UsageError
from zbench.launch.events import Notice, TrialFinished
from zbench.record.record import Correctness, Failure, MemoryPeaks, Record, Timing
from zbench.report import trackers

TRIAL = make_trial(stage=1)
GOOD = Record(
    "run",
    TRIAL.trial_id,
    0,
    {"zero_stage": 1, "betas": [0.9, 0.95]},
    TRIAL.config(),
    "ok",
    timing=Timing([0.5, 0.25], 0.375, 100.0, 1.0),
    memory=MemoryPeaks(1000, None, 5000),
    correctness=Correctness("wrong", error_ratio=float("inf")),
)
BAD = replace(GOOD, repeat=1, outcome="crashed", error=Failure("crashed", "it fell over"), timing=None)


class Notes:
    """A tracker that keeps what it is told, and fails at the repeat called `fails_at`."""

    def __init__(self, fails_at: str = "") -> None:
        self.logged: list[str] = []
        self.closed, self.fails_at = 0, fails_at

    def __call__(self, run_dir: Path, sweep: str) -> "Notes":
        self.made_with = (run_dir, sweep)
        return self

    def log(self, name: str, record: Record) -> None:
        if name == self.fails_at:
            raise ConnectionError("the server is away")
        self.logged.append(name)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def plugged(monkeypatch) -> dict[str, Notes]:
    """Return the trackers that are found as entry points, to be filled by the test."""
    found: dict[str, Notes] = {}

    def points(group: str) -> list[SimpleNamespace]:
        assert group == "zbench.trackers"
        return [SimpleNamespace(name=name, load=lambda it=it: it) for name, it in found.items()]

    monkeypatch.setattr(trackers, "entry_points", points)
    return found


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


@pytest.mark.parametrize("name", ["nothing", ""])
def test_an_unknown_tracker_is_a_usage_error(name):
    with pytest.raises(UsageError, match="expected one of mlflow, tensorboard, wandb"):
        trackers.tracker_factory(name)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(trackers.SHIPPED, "absent", "zbench.report.trackers.absent:Tracker")
    with pytest.raises(UsageError, match=r"pip install 'zbench\[absent\]'"):
        trackers.tracker_factory("absent")


def test_values_that_no_tracker_takes_are_text_or_left_out():
    assert trackers.parameters(GOOD) == {"zero_stage": 1, "betas": "[0.9, 0.95]"}
    figures = trackers.figures(GOOD)
    assert figures["tokens_per_s"] == 100.0
    assert "peak_host_bytes" not in figures
    assert trackers.labels(BAD)["error"] == "it fell over"


def test_tensorboard_reads_what_was_logged(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with trackers.following(["tensorboard"], tmp_path, "tried", lambda _: None) as tell:
        finish(tell, GOOD, BAD)
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / f"{TRIAL.trial_id}-r0"))
    read.Reload()
    assert [event.value for event in read.Scalars("step_seconds")] == [0.5, 0.25]
    assert [(event.step, event.value) for event in read.Scalars("tokens_per_s")] == [(0, 100.0)]
    assert "_hparams_/session_start_info" in read.Tags()["tensors"]


class ToldWandb(ModuleType):
    """Stands in for the package: keeps what each run was told."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[SimpleNamespace] = []
        self.Settings = SimpleNamespace

    def init(self, **about: object) -> SimpleNamespace:
        run = SimpleNamespace(about=about, steps=[], summary={}, ended=[])
        run.log = lambda values, step: run.steps.append((step, values))
        run.finish = lambda exit_code: run.ended.append(exit_code)
        self.runs.append(run)
        return run


def test_wandb_is_told_each_repeat_its_steps_and_how_it_ended(tmp_path, monkeypatch):
    told = ToldWandb()
    monkeypatch.setitem(sys.modules, "wandb", told)
    sys.modules.pop("zbench.report.trackers.wandb", None)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    tracker = importlib.import_module("zbench.report.trackers.wandb").WandbTracker(tmp_path, "tried")
    tracker.log("good", GOOD)
    tracker.log("bad", BAD)
    del sys.modules["zbench.report.trackers.wandb"]  # it holds the stand-in
    good, bad = told.runs
    assert good.steps == [(0, {"step_seconds": 0.5}), (1, {"step_seconds": 0.25})]
    assert (good.ended, bad.ended, bad.steps) == ([0], [1], [])
    assert (good.about["project"], good.about["group"], good.about["name"]) == (
        "tried",
        tmp_path.name,
        "good",
    )
    assert good.about["tags"] == ["wrong", "ok"]
    assert good.about["settings"].silent is True
    assert good.summary["tokens_per_s"] == 100.0


class ToldMlflow:
    """Stands in for `mlflow.tracking.MlflowClient`: keeps what each run was told."""

    def __init__(self) -> None:
        self.runs: dict[str, SimpleNamespace] = {}

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"experiment {name}"

    def create_run(self, experiment: str, *, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
        self.runs[run_name] = SimpleNamespace(experiment=experiment, tags=tags, params={}, steps=[], ended=[])
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_param(self, run: str, key: str, value: object) -> None:
        self.runs[run].params[key] = value

    def log_metric(self, run: str, key: str, value: float, step: int | None = None) -> None:
        if step is not None:
            self.runs[run].steps.append((step, key, value))

    def set_terminated(self, run: str, status: str = "FINISHED") -> None:
        self.runs[run].ended.append(status)


def test_mlflow_is_told_each_repeat_below_its_parent_and_how_it_ended(tmp_path, monkeypatch):
    client = ToldMlflow()
    status = SimpleNamespace(FINISHED=3, FAILED=4, to_string={3: "FINISHED", 4: "FAILED"}.get)
    contents = {
        "mlflow.entities": {"RunStatus": status},
        "mlflow.tracking": {"MlflowClient": lambda: client},
        "mlflow.utils.mlflow_tags": {"MLFLOW_PARENT_RUN_ID": "parent"},
    }
    for name in ("mlflow", "mlflow.utils", *contents):
        module = ModuleType(name)
        vars(module).update(contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules.pop("zbench.report.trackers.mlflow", None)
    with trackers.following(["mlflow"], tmp_path, "tried", lambda _: None) as tell:
        finish(tell, GOOD, BAD)
    del sys.modules["zbench.report.trackers.mlflow"]  # it holds the stand-in
    parent, good, bad = client.runs.values()
    assert [run.ended for run in (parent, good, bad)] == [["FINISHED"], ["FINISHED"], ["FAILED"]]
    assert {run.experiment for run in (parent, good, bad)} == {"experiment tried"}
    assert good.tags["parent"] == bad.tags["parent"] == tmp_path.name
    assert good.params == {"zero_stage": 1, "betas": "[0.9, 0.95]"}
    assert good.steps == [(0, "step_seconds", 0.5), (1, "step_seconds", 0.25)]
    assert bad.steps == []
