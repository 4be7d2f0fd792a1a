"""A trial that is a command: run the user's script, read its step times, verify the weights that it saves."""

import dataclasses
import json
import math
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from zbench import clocks
from zbench.errors import UsageError
from zbench.job.failures import OUT_OF_MEMORY
from zbench.job.jobs import RankJob
from zbench.measure.tree import TreeMemory
from zbench.peers.extensions import remove_abandoned_locks
from zbench.record.record import Correctness, MemoryPeaks, Timing
from zbench.spec.base_rows import must_train_the_same, rows_apart
from zbench.spec.deepspeed import to_deepspeed
from zbench.spec.environments import executable, extensions_directory
from zbench.spec.trial import TrialSpec, samples_per_step
from zbench.spec.workload import FILES, names_of, rendered, values_of, words
from zbench.units import format_seconds
from zbench.verify.checkpoints import EXPECTED_FILES, read_weights
from zbench.verify.rows import told_against, told_apart
from zbench.verify.verdict import Judgement
from zbench.verify.weights import judge_weights, load_base
from zbench.worker.process import Progress
from zbench.worker.step_times import ConsoleTimes, seconds_in
from zbench.worker.watching import OptimizerWatch
from zbench.worker.written import FilesBefore

_DRAIN_SECONDS = 2.0
_LONGEST_LINE = 300
_LAST_LINES = 2000  # torchrun alone prints 20, and 7 more for each rank
_TORCHRUNS = re.compile(r"failed \(exitcode: -?\d+\) local_rank")
_TELL_THE_BATCH = {"micro_batch_size", "global_batch_size", "ds_config", "training_args"}
_LONGER = 1.5  # a script's own clock may round, and lines may belong to several ranks
_MARK = "ZBENCH_COMMAND"  # in the environment of every process of a command
_NO_GPU = ("not compiled with CUDA enabled", "no CUDA GPUs are available", "Found no NVIDIA driver")
_REPOSITORY = str(Path(__file__).parents[2])


class CommandFailedError(Exception):
    """The command ended with another status than 0."""


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """The outcome of a run of a command: seconds of each timed step, memory, and the path of its weights.

    before: the files that were at its paths before it ran. saved_as: the checkpoint's path as the sweep file
    has it. went_on: a process that went on after the command had ended, in words; empty if none did.
    """

    seconds: list[float]
    memory: MemoryPeaks
    checkpoint: Path | None
    before: FilesBefore
    saved_as: str = ""
    went_on: str = ""

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that the command saved; UsageError if it saved none."""
        assert self.checkpoint is not None, "a run without a checkpoint is not judged"
        if not self.checkpoint.exists():
            missing = f"the command left no {self.saved_as}{self.went_on}"
            raise UsageError(f"workload.checkpoint: {missing}; {EXPECTED_FILES}")
        return read_weights(self.checkpoint, self.before.check)


def run_script(job: RankJob, trial: TrialSpec) -> dict[str, Any]:
    """Run a command trial; return the result in the record's fields."""
    scratch = Path(job.result_path).parent / "script"
    with Progress(job.progress_path) as progress:
        on_step = partial(progress.training_step, trial.run)
        outcome = run_once(trial, Path(job.base_dir), scratch, on_step)
    judgement = _judged(job, trial, outcome)
    shutil.rmtree(scratch, ignore_errors=True)
    return {
        "timing": dataclasses.asdict(_timing(trial, outcome.seconds)),
        "memory": dataclasses.asdict(outcome.memory),
        "correctness": dataclasses.asdict(judgement.correctness),
        "warnings": judgement.warnings,
    }


def run_once(
    trial: TrialSpec,
    base_dir: Path,
    scratch: Path,
    on_step: Callable[[int, float], None],
    *,
    watch: OptimizerWatch | None = None,
) -> ScriptRun:
    """Run the command of a trial to its end. scratch: for its files. on_step: called for each console step.
    watch: what happens to its optimizers; None: nothing.

    UsageError if the command cannot start or gives no step times; MemoryError if its output says that it ran
    out of memory; CommandFailedError for other failures.
    """
    spec = trial.workload
    assert spec.command is not None
    assert spec.step_times is not None
    values = _prepared(trial, scratch)
    checkpoint, log = (
        None if template is None else base_dir / rendered(template, values)
        for template in (spec.checkpoint, spec.step_times.jsonl)
    )
    environment = _environment(trial, base_dir, inside=None if watch is None else watch.folder(scratch))
    environment |= {} if watch is None else watch.variables(scratch, checkpoint)
    environment[_MARK] = str(scratch)
    remove_abandoned_locks(environment)
    before = FilesBefore(checkpoint, log)
    began = clocks.perf_counter()
    console = ConsoleTimes(spec.step_times, samples_per_step(trial), began)
    process = _start(words(spec.command, values), base_dir, environment, trial.run.memory_limit)
    memory = TreeMemory(process.pid, device=trial.run.device != "cpu")
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def read_console() -> None:
        """Copy the console to the log as it arrives, and report each step that it shows."""
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last_lines.append(line.strip())
            seconds = console.feed(line, clocks.perf_counter())
            if seconds is not None:
                on_step(len(console.seconds), seconds)

    reader = threading.Thread(target=read_console, daemon=True)
    reader.start()
    status = process.wait()
    reader.join(_DRAIN_SECONDS)  # a process that the script left may hold the pipe open
    peaks = memory.stop()
    if status != 0:
        raise _failure(status, list(last_lines))
    seconds = (
        console.all() if log is None else list(seconds_in(before.new_text(log), spec.step_times.seconds))
    )
    _require_possible(seconds, clocks.perf_counter() - began)
    went_on = _went_on(str(scratch))
    timed = _timed(trial, seconds, went_on)
    return ScriptRun(timed, peaks, checkpoint, before, str(spec.checkpoint), went_on)


def _require_possible(seconds: list[float], elapsed: float) -> None:
    """Raise UsageError if the steps of a command took longer than the command."""
    total = math.fsum(seconds)
    if total > _LONGER * elapsed + 1:
        raise UsageError(
            f"workload.step_times: {len(seconds)} steps take {format_seconds(total)}, but the command ran for"
            f" {format_seconds(elapsed)}: give seconds, or name the group of the regex (?P<milliseconds>...)"
            " or (?P<per_second>...)"
        )


def _went_on(mark: str) -> str:
    """Return in words which process of the command has gone on after its end; empty if none has.

    mark: the value of `_MARK` in the command's environment.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                words = " ".join(process.cmdline())[:_LONGEST_LINE]
                return f", and a process that it started went on after its end ({words}): let it wait for it"
    return ""


def _prepared(trial: TrialSpec, scratch: Path) -> dict[str, Any]:
    """Make the output directory and the files that the command asks for; return name -> value."""
    output = scratch / "output"
    output.mkdir(parents=True)
    values = values_of(trial.config()) | {"output": output}
    asked = names_of(str(trial.workload.command))
    for name in asked & FILES.keys():
        values[name] = scratch / f"{name}.{FILES[name]}"
        values[name].write_text(_text_of(name, trial))
    if "port" in asked:
        with socket.create_server(("127.0.0.1", 0)) as server:
            values["port"] = server.getsockname()[1]
    return values


def _text_of(name: str, trial: TrialSpec) -> str:
    """Return the text of one of the files that a command may ask for."""
    if name == "ds_config":
        return json.dumps(to_deepspeed(trial).document, indent=2)
    from zbench.spec.targets import accelerate, hf_trainer  # needs YAML, which a worker elsewhere may lack

    return (accelerate if name == "accelerate_config" else hf_trainer)(trial).text


def _environment(trial: TrialSpec, base_dir: Path, *, inside: Path | None) -> dict[str, str]:
    """Return the command's environment: the caller's, with the interpreter's programs and the threads.

    inside: a directory that every Python of the command is to see first.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "OPENBLAS_", "PYTORCH_NVML"))}
    paths = [entry for entry in env.pop("PYTHONPATH", "").split(os.pathsep) if entry not in ("", _REPOSITORY)]
    if inside is not None:
        paths.insert(0, str(inside))
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(paths)
    written = trial.engine.engine_python
    python = Path(sys.executable) if written is None else executable(written, base_dir)
    env["PATH"] = os.pathsep.join([str(python.parent), env.get("PATH", os.defpath)])
    if written is not None and "TORCH_EXTENSIONS_DIR" not in env:
        # two versions of DeepSpeed would replace one another's extensions
        env["TORCH_EXTENSIONS_DIR"] = str(extensions_directory(python))
    return env | {"OMP_NUM_THREADS": str(trial.run.threads_per_rank)}


def _start(
    command: list[str], base_dir: Path, environment: dict[str, str], memory_limit: int | None
) -> subprocess.Popen[str]:
    """Start the command in this process's group, so that whatever ends the group ends it."""

    def limit() -> None:
        if memory_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))

    try:
        return subprocess.Popen(
            command, cwd=base_dir, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", bufsize=1, preexec_fn=limit,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(
            f"workload.command: {command[0]} cannot be started ({error.strerror}): it is looked up in the"
            " environment of engine_python or zbench, then on PATH; name the environment that has it"
        ) from None


def _failure(status: int, lines: list[str]) -> Exception:
    lines = [re.sub(r"^\[rank\d+\]:\s*", "", line) for line in lines if line]  # torch's mark of a rank
    shortage = [line for line in lines if any(words in line.lower() for words in OUT_OF_MEMORY)]
    if shortage:
        return MemoryError(shortage[-1][:_LONGEST_LINE])
    lines, ended = _without_torchruns(lines)
    errors = [line for line in lines if re.search(r"(Error|Exception)(: |$)", line)]
    worded = [line for line in lines if any(letter.isalpha() for letter in line)]
    last = (errors or ended or worded or ["no output"])[-1]
    lacks_gpu = any(words in line for line in lines for words in _NO_GPU)
    remedy = "; it asks for a GPU, and none can be used here: train on a CPU, or see `zbench doctor`"
    failure = f"the command ended with status {status}: {last[:_LONGEST_LINE]}"
    return CommandFailedError(failure + remedy if lacks_gpu else failure)


def _timed(trial: TrialSpec, seconds: list[float], went_on: str) -> list[float]:
    """Return the seconds of the timed steps; UsageError if the script reports none."""
    timed = seconds[trial.run.warmup_steps :]
    if not timed:
        spec = trial.workload.step_times
        source = next(v for v in (spec.jsonl, spec.regex, spec.console) if v) if spec else "step_times"
        raise UsageError(
            f"workload.step_times: {source} has {len(seconds)} steps, and run.warmup_steps is"
            f" {trial.run.warmup_steps}{went_on}; correct step_times, or pass {{steps}} to the script"
        )
    return timed


def _timing(trial: TrialSpec, seconds: list[float]) -> Timing:
    """Return the timing; rates are unknown if the script does not get its sizes from the sweep file."""
    median = statistics.median(seconds)
    names = names_of(str(trial.workload.command))
    if not names & _TELL_THE_BATCH:
        return Timing(seconds, median, None, None)
    samples = samples_per_step(trial) / statistics.fmean(seconds)
    tokens = samples * trial.workload.sequence_length if "sequence_length" in names else None
    return Timing(seconds, median, tokens, samples)


def _judged(job: RankJob, trial: TrialSpec, outcome: ScriptRun) -> Judgement:
    if outcome.checkpoint is None:
        warning = "not verified: there is no checkpoint; name the command's as workload.checkpoint"
        return Judgement(Correctness("unchecked"), [warning] if trial.verify.mode != "off" else [])
    if job.reference_path is None:
        return Judgement(Correctness("unchecked"))
    weights = outcome.weights()
    judgement = judge_weights(weights, load_base(Path(job.reference_path)))
    judgement = told_against(judgement, trial.verify.against or {})
    if job.base_row_path is None:
        return judgement
    row, apart = load_base(Path(job.base_row_path)), rows_apart(trial)
    other = judge_weights(weights, row)
    if not must_train_the_same(trial, apart):
        return told_apart(judgement, apart, other)
    if row.mixing:
        return told_apart(judgement, apart, other, f"its {row.mixing} makes the loss no mean over samples")
    theirs = {axis: value for axis, (_, value) in apart.items()}
    is_correct = other.correctness.verdict in ("identical", "equivalent")
    return judgement if is_correct else told_against(other, theirs)


def _without_torchruns(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines before torchrun's own report, and how the rank ended that it names as the cause."""
    at = next((at for at, line in enumerate(lines) if _TORCHRUNS.search(line)), None)
    if at is None:
        return lines, []
    report = dict(re.findall(r"^(rank|exitcode)\s*:\s*(-?\d+)", "\n".join(lines[at:]), re.MULTILINE))
    ended = [f"rank {report['rank']} ended with status {report['exitcode']}"] if len(report) == 2 else []
    return lines[:at], ended
