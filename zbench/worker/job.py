"""The job of a worker process, and how it reports a failure. No torch: the launcher imports this.

If there is no trajectory with the trial's key yet, one process runs `zbench.worker.rank.run_reference(job)`.
Then the launcher starts one process per rank, which calls `zbench.worker.rank.run_rank(job)`. A rank that
fails writes an error file beside the result and exits with 1. `first_failure` reads these files and finds
the cause.
"""

import contextlib
import dataclasses
import errno
import hashlib
import importlib
import json
import os
import stat
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from zbench.errors import DamagedReferenceError, UsageError
from zbench.record.record import Failure
from zbench.spec.peers import begins_rounded
from zbench.spec.trial import NOT_IDENTITY, TrialSpec, accumulation

_SHAPES_NO_BIT = {
    "engine", "engine_python", "ds_config", "zero_stage", "shard_group_size", "leaf_modules", "overlap_comm",
    "offload_optimizer", "offload_param", "offload_schedule", "offload_ratio", "optimizer_threads",
    "rollback", "reduce_bucket_size", "allgather_bucket_size", "sub_group_size", "prefetch_bucket_size",
    "param_persistence_threshold", "compile",
}  # fmt: skip
_SAID_OTHERWISE = {  # by `accumulation`, and by the loss scale of float16
    "gradient_accumulation_steps", "accumulation_mode", "reduce_at",
    "initial_loss_scale", "loss_scale_window",
}  # fmt: skip
NO_ROOM_STATUS = 74
"""Exit status of a rank that could not write its error file (EX_IOERR of sysexits.h)."""

Kind = Literal["reference", "usage", "storage", "oom", "crashed", "peer_lost"]
"""A damaged reference; bad input; no room on a disk; out of memory; anything else; another rank is gone."""

OUT_OF_MEMORY = (
    "can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory",
    "outofmemoryerror", "bad_alloc",
)  # fmt: skip
"""Words, in lower case, of a library that could not allocate memory."""

_NO_THREAD = "can't start new thread"
_NO_ROOM = ("No space left on device", "Disk quota exceeded")
_PEER_LOST = (
    "Connection closed by peer", "Connection reset by peer", "Connection refused", "Broken pipe",
    "Timed out waiting", "Timeout waiting", "Wait timeout", "Read timeout", "Application timeout",
    "Socket closed", "recvValue failed",
)  # fmt: skip
_LONGEST = 400
_LONGEST_ADVICE = 2000
_KINDS_BY_RANK_OF_CAUSE = get_args(Kind)


Watch = Callable[[dict[str, Any]], str | None]
"""Called with each progress line (see `RankJob`); a returned reason ends the trial."""


@dataclass(frozen=True, slots=True)
class RankJob:
    """One rank of one repeat of one trial.

    trial: the JSON values of a TrialSpec. init_method: a rendezvous URL of torch.distributed (`file:///path`
    that does not exist yet, or `tcp://host:port`). base_dir: directory of the sweep's relative paths.
    result_path: the JSON that rank 0 writes, atomically, when the trial succeeds. reference_path: the
    trajectory to compare with; None leaves the verdict `unchecked`. progress_path: a file or FIFO that rank 0
    appends a JSON line to after each step, `{"phase": "warmup" | "timed" | "reference", "step": n,
    "steps": m, "seconds": s}`; n counts from 1 within its phase. trace: the path, without suffix, of the
    trace files of a step; None for no trace. local_rank, local_world_size: the rank and the number of ranks
    on this machine, if there are several machines. turns: the socket where every rank asks for its turns,
    if the trial takes turns with others.
    """

    trial: dict[str, Any]
    rank: int
    world_size: int
    init_method: str
    run_dir: str
    base_dir: str
    result_path: str
    reference_path: str | None = None
    progress_path: str | None = None
    repeat: int = 0
    trace: str | None = None
    local_rank: int = 0
    local_world_size: int | None = None
    turns: str | None = None


@dataclass(frozen=True, slots=True)
class ReferenceJob:
    """Compute the reference trajectory of a trial and save it, atomically, at `reference_path`.

    result_path: the error file is named after it, as for a rank.
    """

    trial: dict[str, Any]
    run_dir: str
    base_dir: str
    result_path: str
    reference_path: str
    progress_path: str | None = None


def threads_per_rank(trial: TrialSpec, local_world_size: int | None = None, cpus: int = 0) -> int:
    """Return the compute threads of one rank: as the trial says, or an equal share of the usable cores.

    The reference uses the same number, because the number of threads can change bits. cpus: the number of
    usable CPUs, if it differs from this machine's.
    """
    if trial.run.threads_per_rank != "auto":
        return trial.run.threads_per_rank
    local = local_world_size or max(1, trial.run.world_size // trial.run.nodes)
    return max(1, (cpus or len(os.sched_getaffinity(0))) // local)


def reference_key(trial: TrialSpec) -> str:
    """Return 16 hex digits that are equal exactly where two trials have the same reference trajectory.

    It covers the workload, world size, seed, number of steps, order of summation and every key of the engine,
    except the keys listed as changing no bit. So a new key that is not listed costs an additional reference,
    and never gives a wrong verdict.
    """
    if trial.workload.command is not None:
        base = trial.held_against().config()
        base["run"] = {key: value for key, value in base["run"].items() if key not in NOT_IDENTITY}
        return hashlib.sha256(json.dumps(base, sort_keys=True).encode()).hexdigest()[:16]
    engine = trial.engine
    what: dict[str, Any] = {
        "workload": trial.workload.model_dump(mode="json"),
        "run": trial.run.model_dump(include={"world_size", "device", "seed", "threads_per_rank"}),
        "steps": trial.run.warmup_steps + trial.run.steps,
        "engine": engine.model_dump(mode="json", exclude=_SHAPES_NO_BIT | _SAID_OTHERWISE),
        "loss_scale": (engine.initial_loss_scale, engine.loss_scale_window)
        if engine.dtype == "float16"
        else None,
        "accumulation": dataclasses.asdict(accumulation(engine, trial.workload)),
        "truth": trial.verify.mode == "full",
        "begins_rounded": begins_rounded(engine),
    }
    canonical = json.dumps(what, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def error_path(result_path: str, rank: int | str) -> Path:
    """Return the error file of a rank, or of the reference ("reference")."""
    return Path(f"{result_path}.{rank}.error.json")


def write_error(result_path: str, rank: int | str, kind: str, message: str) -> None:
    """Write one rank's error file for the launcher. `kind` is one of `Kind`."""
    write_json(
        error_path(result_path, rank), {"kind": kind, "message": message, "rank": rank, "time": time.time()}
    )


def first_failure(result_path: str, world_size: int) -> Failure | None:
    """Return the cause among the errors of the ranks: invalid input, a full disk, out-of-memory, then the
    earliest crash.

    The error of a rank that only lost its peer is returned if there is no other. `kind` is `oom`, `crashed`,
    `usage` for invalid input that only the worker could detect, `storage` for a full disk, or `reference` for
    a damaged reference. `log` is a file's name. None if no rank wrote an error.
    """
    paths = [error_path(result_path, rank) for rank in ["reference", *range(world_size)]]
    errors = [json.loads(path.read_text()) for path in paths if path.exists()]
    if not errors:
        return None
    cause = min(errors, key=lambda error: (_KINDS_BY_RANK_OF_CAUSE.index(error["kind"]), error["time"]))
    kind = "crashed" if cause["kind"] == "peer_lost" else cause["kind"]
    if cause["rank"] == "reference":
        return Failure(kind, cause["message"], "rank0.log")
    return Failure(kind, f"rank {cause['rank']}: {cause['message']}", f"rank{cause['rank']}.log")


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the whole file or none."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(value))
    draft.replace(path)


def kind_of(error: BaseException) -> Kind:
    """Return what kind of failure an exception is, by its type or by the words that libraries use."""
    text = str(error)
    if isinstance(error, UsageError):
        return "reference" if isinstance(error, DamagedReferenceError) else "usage"
    if _is_out_of_memory(error, text):
        return "oom"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or any(words in text for words in _NO_ROOM):
        return "storage"
    if any(words in text for words in _PEER_LOST):
        return "peer_lost"
    return "crashed"


def message_of(error: BaseException) -> str:
    """Return an error's message in one line, with its type if the message needs it.

    A UsageError keeps all lines: they may show what was expected.
    """
    if isinstance(error, UsageError):
        return _shortened(str(error).strip(), _LONGEST_ADVICE)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return _shortened(f"{name}: {lines[0]}" if lines else name, _LONGEST)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def report(error: BaseException, stem: str, who: int | str) -> int:
    """Write an error file for the launcher, if this rank has not written one. stem, who: see `error_path`.

    Returns the exit status: 1, or the status for a file that could not be written.
    """
    try:
        if not error_path(stem, who).exists():
            write_error(stem, who, kind_of(error), message_of(error))
    except OSError:
        return NO_ROOM_STATUS
    return 1


def call(target: str, job: Callable[[], object], error: tuple[str, int | str]) -> int:
    """Call `target` (`module:function`) with its job and return an exit status.

    error: where a failure is reported, as (result path, rank).
    """
    try:
        try:
            private_caches()
            module, name = target.split(":")
            getattr(importlib.import_module(module), name)(job())
        except SystemExit as request:
            if not isinstance(request.code, str):
                return request.code or 0
            raise RuntimeError(f"the program ended itself: {request.code}") from request
    except BaseException as escaped:
        traceback.print_exc()
        return report(escaped, *error)
    return 0


def private_caches() -> None:
    """Keep the compiled code of torch and Triton, which is loaded and run, in folders of this user alone.

    Torch's default is a fixed name in the temporary directory, which any other user could create first.
    UsageError for a folder that others own, or may read or write.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zbench" / "compiled"
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        folder = Path(os.environ.get(variable, ""))
        if not folder.name or any(part.startswith("torchinductor_") for part in folder.parts):  # torch's own
            folder = base / variable.split("_")[0].lower()
            os.environ[variable] = str(folder)
        with contextlib.suppress(OSError):  # where no folder can be made, whatever compiles says so
            for each in (base, folder) if folder.parent == base else (folder,):
                each.mkdir(0o700, parents=True, exist_ok=True)
        if not os.path.lexists(folder):
            continue
        about = folder.lstat()
        if (about.st_uid, stat.S_IMODE(about.st_mode)) != (os.geteuid(), 0o700):
            raise UsageError(
                f"{folder}: code that others put there would be run: expected a folder of mode 0700 that is"
                f" yours; remove it, or name another by {variable}"
            )


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError | OSError):
        return False
    return _NO_THREAD in text or any(words in text.lower() for words in OUT_OF_MEMORY)


class ProgressTail:
    """Reads the new progress lines of rank 0 (`process.Progress` writes them). An incomplete line is read
    later.

    Make a new one for each run of a trial. A network file system may show a line before its contents: such a
    line is skipped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the complete lines written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        return [line for line in map(_parsed, data[:end].splitlines()) if line is not None]

    def feed(self, watch: Watch) -> str | None:
        """Pass new lines to `watch`; return its first reason to end the trial, if any."""
        return next(filter(None, map(watch, self.new_lines())), None)


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return a parsed progress line, None for invalid bytes."""
    with contextlib.suppress(ValueError):
        return dict(json.loads(text))
    return None
