"""Trials that are commands: timed from outside, judged by what they save, ended with all they started."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launch.processes import gone, hurried_clock
from tests.shared_processes import SharedProcesses
from tests.world import local_runner
from zbench import _nudge
from zbench.errors import UsageError
from zbench.job.jobs import ReferenceJob
from zbench.job.progress import ProgressTail
from zbench.launch.process import client
from zbench.launch.trial import TrialRunner
from zbench.spec.expand import Expansion, expand
from zbench.spec.load import load_sweep
from zbench.spec.workload import StepTimesSpec
from zbench.verify.checkpoints import read_weights
from zbench.worker import script
from zbench.worker.base_runs import run_base
from zbench.worker.script import run_once
from zbench.worker.step_times import ConsoleTimes
from zbench.worker.watching import OptimizerWatch, training_in

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
seed = 0 if a.do == "same" else os.getpid()
w, noise = np.linspace(-1, 1, 200, dtype=np.float32), np.random.default_rng(seed)
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
        "run": {"warmup_steps": 1, "steps": 3, "repeats": 1, "timeout": "600s", **more.pop("run", {})},
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
    assert healthy.timing.step_seconds == [0.02, 0.03, 0.04], "the first step is warm-up"
    assert not healthy.memory.exact
    assert healthy.correctness.verdict == "equivalent"
    assert faulty.correctness.verdict == "wrong"
    assert faulty.correctness.worst_parameter == "w"
    assert healthy.config["verify"]["against"] == {"zero_stage": 1}, "the file's own engine is the base"


def test_a_command_gets_the_files_that_it_asks_for(tmp_path: Path, runner: TrialRunner) -> None:
    (tmp_path / "copies").mkdir()
    command = "cp {accelerate_config} {training_args} {ds_config} copies"
    runner.run(sweep(tmp_path, workload={"command": command, "checkpoint": None}).trials[0])
    texts = {path.name: path.read_text() for path in (tmp_path / "copies").iterdir()}
    assert "distributed_type: " in texts["accelerate_config.yaml"]
    assert "learning_rate" in json.loads(texts["training_args.json"])
    assert json.loads(texts["ds_config.json"])["zero_optimization"]["stage"] == 2


def test_a_script_whose_runs_end_alike_is_run_twice_more_with_rounding_errors(tmp_path: Path) -> None:
    (trial, _) = sweep(tmp_path, do="same").trials
    progress = tmp_path / "progress.jsonl"
    run_base(ReferenceJob({}, "", str(tmp_path), "", str(tmp_path / "base"), str(progress)), trial)
    told = [(line["phase"], line["step"], line["steps"]) for line in ProgressTail(progress).new_lines()]
    assert told == [("reference", number, 4) for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("is_declared", [False, True])
def test_rows_that_train_otherwise_are_told_or_judged(
    is_declared: bool, tmp_path: Path, runner: TrialRunner
) -> None:
    command = "python train.py --stage {stage} --steps {steps} --out {output} --ds 0 --do train"
    own = {"command": command, "parameters": {"stage": 1}}
    verify = {"same_training": ["stage"]} if is_declared else {}
    trials = sweep(tmp_path, workload=own, axes={"stage": [1, 3]}, verify=verify).trials
    base, other = (runner.run(trial) for trial in trials)
    assert (base.correctness.verdict, base.correctness.differs_along) == ("equivalent", [])
    if is_declared:
        assert other.correctness.verdict == "wrong"
        assert "differs from the row with stage=1" in other.correctness.diagnosis
    else:
        assert (other.correctness.verdict, other.correctness.differs_along) == ("equivalent", ["stage"])
        assert "rows differ along stage: 3 against 1, error ratio" in other.warnings[0]
        assert "`verify.same_training: [stage]`" in other.warnings[0]


@pytest.mark.parametrize("mixing", ["", "BatchNorm1d"])
def test_with_a_global_batch_rows_train_the_same_unless_a_layer_mixes_samples(
    mixing: str, tmp_path: Path, runner: TrialRunner
) -> None:
    command = "python train.py --stage {micro_batch_size} --steps {steps} --out {output} --ds 0 --do train"
    own = {"command": command, "micro_batch_size": 1, "global_batch_size": 3}
    sizes = {"micro_batch_size": [1, 3]}
    trials = sweep(tmp_path, workload=own, run={"world_size": 1}, axes=sizes).trials
    if mixing:  # as a script that trains such a layer by an optimizer of torch
        layer = "import torch; net = torch.nn.BatchNorm1d(2); torch.optim.SGD(net.parameters(), lr=0.1)\n"
        (tmp_path / "train.py").write_text(layer + SCRIPT)
    base, other = (runner.run(trial) for trial in trials)
    assert base.correctness.verdict == "equivalent", base
    if mixing:
        assert (other.correctness.verdict, other.correctness.differs_along) == ("equivalent", list(sizes))
        assert f"its {mixing} makes the loss no mean over samples" in other.warnings[0]
    else:
        assert other.correctness.verdict == "wrong"
        assert "differs from the row with micro_batch_size=1" in other.correctness.diagnosis


def test_a_base_that_ran_once_judges_nothing(tmp_path: Path, runner: TrialRunner) -> None:
    (trial, _) = sweep(tmp_path, verify={"base_runs": 1}).trials
    record = runner.run(trial)
    assert record.correctness.verdict == "unchecked"
    assert "the base ran once (verify.base_runs: 1)" in record.warnings[0]


def test_files_of_an_earlier_run_are_no_results(tmp_path: Path) -> None:
    """Paths are relative to the sweep file; the files of a run before stay as they are."""
    files = {"checkpoint": "fixed/model.safetensors", "step_times": {"jsonl": "fixed/steps.jsonl"}}
    text = "python train.py --stage 1 --steps {steps} --out fixed --ds 0 --do train"
    trial = sweep(tmp_path, workload={"command": text + " {zero_stage}", **files}, axes={}).trials[0]
    (tmp_path / "train.py").write_text(SCRIPT.replace("parse_args()", "parse_known_args()[0]"))
    (tmp_path / "fixed").mkdir()
    for number in range(2):
        outcome = run_once(trial, tmp_path, tmp_path / f"scratch{number}", lambda *_: None)
        assert outcome.seconds == [0.02, 0.03, 0.04]
        assert outcome.weights()["w"].numel() == 200
    append = "sh -c 'tail -n 2 fixed/steps.jsonl > two; cat two >> fixed/steps.jsonl'"
    for command, message in (
        ("true", "wrote nothing to .*/fixed/steps.jsonl"),
        (append, "did not write .*/m"),
    ):
        idle = trial.workload.model_copy(update={"command": command})
        with pytest.raises(UsageError, match=message):
            run_once(
                trial.model_copy(update={"workload": idle}), tmp_path, tmp_path / command[:2], lambda *_: None
            ).weights()
    assert (tmp_path / "fixed" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "tokens", "samples"),
    [
        ("", None, None),
        ("--ds {micro_batch_size}-{sequence_length}", 2 * 3 * 128 / 0.03, 2 * 3 / 0.03),
    ],
)
def test_a_script_has_the_rates_of_what_it_was_given(
    tmp_path: Path, runner: TrialRunner, arguments: str, tokens: float | None, samples: float | None
) -> None:
    command = f"python train.py --stage {{zero_stage}} --steps {{steps}} --out {{output}} {arguments}"
    engine = {"gradient_accumulation_steps": 3}
    trial = sweep(tmp_path, workload={"command": command, "checkpoint": None}, engine=engine).trials[0]
    timing = runner.run(trial).timing
    assert (timing.tokens_per_s, timing.samples_per_s) == (
        tokens and pytest.approx(tokens),
        samples and pytest.approx(samples),
    )
    assert timing.steps_per_s == pytest.approx(1 / 0.03)


def test_a_killed_build_keeps_no_command_waiting_and_one_that_goes_on_keeps_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch waits for a lock forever, whoever left it."""
    (trial, _) = sweep(tmp_path).trials
    abandoned, held = (tmp_path / "extensions" / "py_cpu" / name / "lock" for name in ("killed", "building"))
    for lock in (abandoned, held):
        lock.parent.mkdir(parents=True)
        lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    with held.open():
        run_once(trial, tmp_path, tmp_path / "scratch", lambda *_: None)
    assert held.exists()
    assert not abandoned.exists()


def run_code(place: Path, code: str, words: str = "{zero_stage}", *, python: str | None = None) -> None:
    """Run a script whose first line is its step, perturbed unless another interpreter runs it."""
    (place / "tell.py").write_text(code)
    workload = {"command": f"python tell.py {words}", "step_times": {"regex": "^step"}, "checkpoint": None}
    trial = sweep(place, workload=workload, run={"warmup_steps": 0, "steps": 1}).trials[0]
    trial = trial.model_copy(update={"engine": trial.engine.model_copy(update={"engine_python": python})})
    watch = OptimizerWatch(8) if python is None else None
    run_once(trial, place, place / "scratch", lambda *_: None, watch=watch)


def test_a_command_has_a_free_port_and_both_startup_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's `sitecustomize` runs in a perturbed run, too, and does not take the place of zbench's."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os; os.environ['OWN'] = 'own'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    code = "import os, sys; print('step', sys.argv[2], os.environ['OWN'], type(sys.meta_path[0]).__name__)"
    run_code(tmp_path, code, "{zero_stage} {port}")
    _, port, *told = capsys.readouterr().out.split()
    assert told == ["own", "WatchOptimizers"]
    with socket.create_server(("127.0.0.1", int(port))):
        pass


@pytest.mark.parametrize(
    ("python", "own", "told"),
    [
        pytest.param(None, None, "None", marks=pytest.mark.check),
        (sys.executable, "own", "own"),
        (sys.executable, None, "zb"),
    ],
)
def test_another_environment_has_extensions_of_its_own_unless_told(
    python: str | None,
    own: str | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "zb"))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", own or "")
    if own is None:
        monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    run_code(tmp_path, "import os; print('step', os.environ.get('TORCH_EXTENSIONS_DIR'))", python=python)
    _, folder = capsys.readouterr().out.split()
    assert Path(folder).relative_to(tmp_path).parts[0] == told if told == "zb" else folder == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "{output}/steps.jsonl has 0 steps, and run.warmup_steps is 1; correct step_times"),
        (
            "import torch; torch.ones(1).cuda()",
            "it asks for a GPU, and none can be used here",
        ),
        ("import os, time; os.fork() or time.sleep(20)", "started went on after its end (python train.py"),
        (
            "open(sys.argv[1], 'w').write('{\"seconds\": 1e-3}\\n' * 9)",
            "the command left no {output}/model.pt",
        ),
        (
            "open(sys.argv[1], 'w').write('{\"seconds\": 33}\\n' * 9)",
            "or name the group of the regex (?P<milliseconds>",
        ),
    ],
    ids=["nothing", "gpu", "forks", "elsewhere", "milliseconds"],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_command_without_results_is_one_message_with_the_remedy(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "kept.pt").write_text("mine")
    workload = {"command": "python train.py {output}/steps.jsonl", "checkpoint": "{output}/model.pt"}
    (trial,) = sweep(tmp_path, workload=workload, axes={}).trials
    (tmp_path / "train.py").write_text(f"import sys\n{text}\n")
    with pytest.raises((UsageError, script.CommandFailedError)) as caught:
        run_once(trial, tmp_path, tmp_path / "scratch", lambda *_: None).weights()
    assert message in str(caught.value)
    assert (tmp_path / "kept.pt").exists()


@pytest.mark.parametrize(
    ("do", "outcome", "message"),
    [
        ("fail", "crashed", "the command ended with status 1: RuntimeError: no such layer"),
        pytest.param("oom", "oom", "RuntimeError: CUDA out of memory", marks=pytest.mark.check),
        ("hang", "timeout", ""),
    ],
)
def test_failures_are_named_and_nothing_is_left_running(
    do: str, outcome: str, message: str, tmp_path: Path, runner: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = hurried_clock(lambda: bool(children_of(tmp_path)))
    monkeypatch.setattr(client, "time", clock)  # the deadline is over soon once the script has begun
    record = runner.run(sweep(tmp_path, do=do, verify={"mode": "off"}).trials[0])
    assert record.outcome == outcome
    assert message in record.error.message
    assert len(children_of(tmp_path)) == (do == "hang")
    assert all(map(gone, children_of(tmp_path))), "even in a session of its own"


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        ("[rank0]: mine.TooLongException: 9 tokens", "mine.TooLongException: 9 tokens"),
        ("training begins", "rank 0 ended with status 7"),
    ],
)
def test_the_cause_of_a_failure_under_torchrun_is_named(printed: str, cause: str, tmp_path: Path) -> None:
    """torchrun's report has seven lines for each rank, and prints the first to fail again at the end."""
    others = "".join(f"rank : {n} (local_rank: {n})\nexitcode : -15 (pid: 9)\n\n\n\n\n" for n in range(64))
    report = f"{printed}\nE0102 failed (exitcode: 7) local_rank: 0\n{others}rank      : 0 (local_rank: 0)\n"
    report += "multiprocessing.errors.ChildFailedError:\n" + "=" * 60 + "\nboom.py FAILED\n" + "-" * 60 + "\n"
    report += "exitcode  : 7 (pid: 1)\ntraceback : To enable traceback see: https://pytorch.org\n"
    (tmp_path / "report.txt").write_text(report)
    (trial, _) = sweep(tmp_path).trials
    workload = trial.workload.model_copy(update={"command": "sh -c 'cat report.txt; exit 1'"})
    with pytest.raises(script.CommandFailedError, match=f"status 1: {cause}$"):
        run_once(
            trial.model_copy(update={"workload": workload}), tmp_path, tmp_path / "scratch", lambda *_: None
        )


def children_of(place: Path) -> list[int]:
    """Return the processes that scripts started, as the logs under `place` tell."""
    texts = [log.read_text(errors="replace") for log in place.rglob("*.log")]
    return [int(child) for text in texts for child in re.findall(r"child (\d+)", text)]


DEEPSPEED = "epoch=0/micro_step=4/global_step=2, RunningAvgSamplesPerSec=30.1, CurrSamplesPerSec=32.0, Mem"


@pytest.mark.timeout(100)  # in quadratic time this takes an hour
def test_a_line_of_a_megabyte_is_searched_once() -> None:
    console = ConsoleTimes(StepTimesSpec(console="deepspeed"), samples=8, began=0.0)
    assert console.feed("global_step=1 " * 400_000, 1.0) is None


@pytest.mark.parametrize(
    ("spec", "lines", "seconds"),
    [
        ({"console": "deepspeed"}, ["loading", DEEPSPEED], [0.25]),
        ({"console": "transformers"}, ["{'loss': 2.3, 'epoch': 0.1}", "x", "{'loss': 2.2}"], [1.0, 2.0]),
        ({"console": "transformers"}, ["{'train_runtime': 3.0, 'train_steps_per_second': 4.0}"], [0.25]),
        ({"regex": r"it \d+: (?P<seconds>[\d.]+)"}, ["it 3: 12.5 s"], [12.5]),
        ({"regex": r"(?P<milliseconds>[\d.]+) ms/it"}, ["it 3: 125 ms/it"], [0.125]),
        ({"regex": r"(?P<per_second>[\d.]+) it/s"}, ["8.0 it/s"], [0.125]),
        ({"regex": r"^step \d+"}, ["step 1", "noise", "step 2"], [1.0, 2.0]),
    ],
)
def test_consoles_are_read(spec: dict[str, Any], lines: list[str], seconds: list[float]) -> None:
    console = ConsoleTimes(StepTimesSpec(**spec), samples=8, began=0.0)
    for number, text in enumerate(lines, 1):
        console.feed(text, float(number))
    assert console.all() == seconds


def test_each_weight_moves_by_units_in_the_last_place() -> None:
    wide, short, whole, empty = torch.ones(50), torch.ones(50).bfloat16(), torch.ones(3).long(), torch.ones(0)
    for weight in (wide, short, whole, empty):
        _nudge.nudge(weight, 1, 8)
    assert set(wide.view(torch.int32).sub(0x3F800000).tolist()) == {-8, 8}
    assert set(short.view(torch.int16).sub(0x3F80).tolist()) == {-1, 1}
    assert whole.tolist() == [1, 1, 1]


def test_a_watched_script_is_nudged_and_reports_its_training(tmp_path: Path) -> None:
    """It reports the way, the first values of weights and buffers, and the steps after the last save."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sitecustomize, torch; torch.manual_seed(0)\n"
        "m = torch.nn.BatchNorm1d(1000); p = m.weight; first = torch.rand(1); torch.manual_seed(0)\n"
        "for optimizer in (torch.optim.SGD([p], lr=0.5), torch.optim.SGD([p], lr=0.5)):\n"
        "    open('saved', 'a').write('x')\n"
        "    p.grad = torch.ones(1000); optimizer.step(); p.grad = None; m.running_mean += 3\n"
        "values = p.detach(); same = bool(first == torch.rand(1)); torch.save(m.state_dict(), 'last.pt')\n"
        "if sys.argv[2] == '8': open('saved', 'a').write('x')\n"
        "print((values / 1e-6).round().unique().numel(), float(values.std()), same)\n"
    )
    found = []
    for units in (8, 0):
        scratch, watch = tmp_path / str(units), OptimizerWatch(units)
        folder = watch.folder(scratch)
        env = os.environ | watch.variables(scratch, scratch / "saved")
        words = [sys.executable, "-c", code, str(folder), str(units)]
        done = subprocess.run(words, cwd=scratch, env=env, capture_output=True, text=True, check=True)
        values, spread, same_draw = done.stdout.split()
        training = training_in(scratch)
        found.append((int(values) > 1, 1e-8 < float(spread) < 1e-5, same_draw, training.missed_steps))
        assert training.way == pytest.approx(1.0, rel=1e-4)
        firsts = training.first_of(read_weights(scratch / "last.pt"))
        assert [firsts[name].mean() for name in ("weight", "running_mean")] == [pytest.approx(1, 1e-5), 0]
    assert found == [(True, True, "True", 0), (False, False, "True", 1)]
