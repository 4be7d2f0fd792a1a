"""Trials that are commands: timed from outside, judged by what they save, ended with all they started."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.shared_processes import SharedProcesses
from zbench.errors import SpecError
from zbench.launch.trial import TrialRunner, local_runner
from zbench.record.record import Record
from zbench.spec.command import StepTimesSpec
from zbench.spec.expand import Expansion, expand
from zbench.spec.load import load_sweep
from zbench.worker import perturbing
from zbench.worker.script import run_once
from zbench.worker.step_times import ConsoleTimes, Line

SCRIPT = """
import argparse, json, os, subprocess, sys, time
import numpy as np
from safetensors.numpy import save_file
p = argparse.ArgumentParser()
for name in ("stage", "steps", "out", "do", "ds"):
    p.add_argument(f"--{name}")
a = p.parse_args()
if a.do == "fail": raise RuntimeError("no such layer")
if a.do == "oom": raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
if a.do == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("child", child.pid, flush=True)
    time.sleep(600)
w, noise = np.linspace(-1, 1, 200, dtype=np.float32), np.random.default_rng(os.getpid())
with open(f"{a.out}/steps.jsonl", "w") as log:
    for step in range(int(a.steps)):
        rounding = 1 + np.float32(1e-7) * noise.standard_normal(200).astype(np.float32)
        w -= np.float32(0.02 if a.stage != "3" else 0.01) * w * rounding
        print(json.dumps({"seconds": 0.01 * (step + 1)}), file=log)
        print(f"step {step} took {10 * (step + 1)} ms", flush=True)
save_file({"w": w}, f"{a.out}/model.safetensors")
"""


def sweep(place: Path, *, do: str = "train", **more: Any) -> Expansion:
    (place / "train.py").write_text(SCRIPT)
    command = "python train.py --stage {zero_stage} --steps {steps} --out {output} --ds {ds_config} --do "
    workload = {
        "command": command + do,
        "step_times": {"jsonl": "{output}/steps.jsonl"},
        "checkpoint": "{output}/model.safetensors",
    } | more.pop("workload", {})
    document = {
        "workload": workload,
        "run": {"warmup_steps": 1, "steps": 3, "repeats": 1, "timeout": "60s", **more.pop("run", {})},
        "engine": {"zero_stage": 1},
        "axes": {"zero_stage": [2, 3]},
    }
    (place / "sweep.yaml").write_text(json.dumps(document | more))
    return expand(load_sweep(place / "sweep.yaml", environ={}))


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_processes: SharedProcesses) -> Any:
    shared_processes.lend_by(monkeypatch)
    (tmp_path / "run").mkdir()
    with local_runner(tmp_path / "run", tmp_path, rerun_disturbed=False) as running:
        yield running


def test_a_script_is_timed_judged_and_recorded_as_any_trial(tmp_path: Path, runner: TrialRunner) -> None:
    healthy, faulty = (runner.run(trial) for trial in sweep(tmp_path).trials)
    assert healthy.outcome == "ok", healthy.error
    assert healthy.timing is not None
    assert healthy.timing.step_seconds == [0.02, 0.03, 0.04], "the first step is warm-up"
    assert healthy.timing.samples_per_s == pytest.approx(2 / 0.03)
    assert healthy.memory is not None
    assert not healthy.memory.exact
    assert healthy.correctness.verdict == "equivalent"
    assert faulty.correctness.verdict == "wrong"
    assert faulty.correctness.worst_parameter == "w"
    assert healthy.config["verify"]["against"] == {"zero_stage": 1}, "the file's own engine is the base"


def test_a_killed_build_keeps_no_command_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (trial, _) = sweep(tmp_path).trials
    abandoned = tmp_path / "extensions" / "cpu_adam" / "lock"
    abandoned.parent.mkdir(parents=True)
    abandoned.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    run_once(trial, tmp_path, tmp_path / "scratch", lambda *_: None)
    assert not abandoned.exists()


def failed(place: Path, runner: TrialRunner, do: str) -> Record:
    quick = {"run": {"timeout": "4s" if do == "hang" else "60s"}, "verify": {"mode": "off"}}
    return runner.run(sweep(place, do=do, **quick).trials[0])


def test_failures_are_told_and_nothing_is_left_running(tmp_path: Path, runner: TrialRunner) -> None:
    record = failed(tmp_path, runner, "fail")
    assert record.outcome == "crashed"
    assert record.error is not None
    assert "the command ended with status 1: RuntimeError: no such layer" in record.error.message
    assert failed(tmp_path, runner, "oom").outcome == "oom"
    record = failed(tmp_path, runner, "hang")
    assert record.outcome == "timeout"
    assert record.error is not None
    log = (tmp_path / "run" / str(record.error.log)).read_text()
    child = int(log.split("child ")[1].split()[0])
    assert not psutil.pid_exists(child), "not even a process in a session of its own"


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"command": "python train.py {zero_stag}"}, "unknown name {zero_stag} (did you mean 'zero_stage'?)"),
        ({"command": "python 'train.py"}, "No closing quotation"),
        ({"step_times": None}, "a command needs step_times"),
        ({"step_times": {"regex": "("}}, "no regular expression"),
        ({"step_times": {"jsonl": "x", "regex": "y"}}, "expected one of jsonl, regex and console"),
        ({"model": "mlp"}, "a command brings its own model and data; leave model out"),
        ({"command": None}, "step_times belongs to workload.command"),
        (
            {"command": "python train.py"},
            "the command does not use {zero_stage}, so this axis changes nothing",
        ),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    workload: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as error:
        sweep(tmp_path, workload=workload)
    assert message in str(error.value)


def test_the_run_to_be_held_against_can_be_named(tmp_path: Path) -> None:
    named = sweep(tmp_path, verify={"against": {"zero_stage": 0}}).trials[0]
    assert named.held_against().engine.zero_stage == 0
    with pytest.raises(SpecError, match=r"verify.against: zero_stag: Extra inputs"):
        sweep(tmp_path, verify={"against": {"zero_stag": 0}})
    with pytest.raises(SpecError, match="against belongs to"):
        load_sweep_of({"verify": {"against": {"zero_stage": 0}}}, tmp_path)


def load_sweep_of(document: dict[str, Any], place: Path) -> Expansion:
    (place / "other.json").write_text(json.dumps(document))
    return expand(load_sweep(place / "other.json", environ={}))


def lines(*texts: str, spec: StepTimesSpec, samples: int = 8) -> list[float]:
    console = ConsoleTimes(spec, samples, began=0.0)
    for number, text in enumerate(texts, 1):
        console.feed(Line(text, float(number)))
    return console.all()


def test_consoles_are_read() -> None:
    deepspeed = (
        "epoch=0/micro_step=4/global_step=2, RunningAvgSamplesPerSec=30.1, CurrSamplesPerSec=32.0, MemAlloc"
    )
    assert lines("loading", deepspeed, spec=StepTimesSpec(console="deepspeed")) == [0.25]
    trainer = StepTimesSpec(console="transformers")
    assert lines("{'loss': 2.3, 'epoch': 0.1}", "x", "{'loss': 2.2}", spec=trainer) == [1.0, 2.0]
    assert lines("{'train_runtime': 3.0, 'train_steps_per_second': 4.0}", spec=trainer) == [0.25]
    assert lines("it 3: 12.5 s", spec=StepTimesSpec(regex=r"it \d+: (?P<seconds>[\d.]+)")) == [12.5]
    assert lines("step 1", "noise", "step 2", spec=StepTimesSpec(regex=r"^step \d+")) == [1.0, 2.0]


@pytest.mark.soak
def test_the_perturbed_run_moves_each_weight_by_one_unit(tmp_path: Path) -> None:
    code = (
        "import torch; p = torch.nn.Parameter(torch.ones(4)); torch.optim.SGD([p], lr=0.1);"
        "torch.optim.Adam([p]); print(p.detach().view(torch.int32).sub(0x3f800000).tolist())"
    )
    env = os.environ | {"PYTHONPATH": str(perturbing.write(tmp_path))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, -1, 1, -1]"


def test_ctrl_c_ends_the_command_and_all_that_it_started(tmp_path: Path) -> None:
    sweep(tmp_path, do="hang", verify={"mode": "off"})
    words = [sys.executable, "-m", "zbench.cli.main", "sweep", "sweep.yaml", "--timeout", "500s"]
    started = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        child = first_match(tmp_path, r"child (\d+)", started)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == 130, said
    assert not psutil.pid_exists(int(child)), "not even a process in a session of its own"


def first_match(place: Path, pattern: str, process: subprocess.Popen[str]) -> str:
    """Wait until a log of the only run matches, and return its first group."""
    for _ in range(600):
        for log in place.glob("results/*/*/logs/**/*"):
            found = re.search(pattern, log.read_text(errors="replace")) if log.is_file() else None
            if found:
                return found[1]
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    raise AssertionError(f"no log matches {pattern} within a minute")
