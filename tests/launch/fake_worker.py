"""Workers without torch, to see what launch makes of them. What a rank does is said in `workload.options`."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zbench.errors import DamagedReferenceError
from zbench.job.failures import write_error
from zbench.job.jobs import RankJob, ReferenceJob, write_json

TIMING = {"step_seconds": [0.01, 0.01], "median_step_s": 0.01, "tokens_per_s": 1000.0, "samples_per_s": 10.0}
MEMORY = {"peak_device_bytes": 1000, "peak_host_bytes": 0, "peak_rss_bytes": 5000}
RESULT: dict[str, Any] = {"outcome": "ok", "error": None, "memory": MEMORY, "traffic": {}, "warnings": []}

if (_fault := os.environ.get("ZBENCH_TEST_FAULT", "")).startswith("clock:"):
    import driver  # beside this file, which the driver puts on the path

    driver.install(_fault)


def model() -> None:
    """Stand for the trials' model: it has to be there, nothing builds it."""


def run_rank(job: RankJob) -> None:
    """Do to this rank what the trial's options say, then, on rank 0, report success."""
    options = job.trial["workload"]["options"]
    rank_of_trouble = options.get("rank", 0)
    if "gate" in options:
        _wait_for(Path(options["gate"]))
    if "sleep" in options:
        time.sleep(options["sleep"])
    if rank_of_trouble in (job.rank, "all") and "do" in options:
        ACTIONS[options["do"]](job)
    elif options.get("peers") == "wait":
        time.sleep(600)
    if job.rank == 0:
        if job.trace is not None:
            Path(job.trace).parent.mkdir(exist_ok=True)
            Path(f"{job.trace}.trace.json").write_text("[]")
        result = result_of(options, has_reference=job.reference_path is not None)
        write_json(Path(job.result_path), result)


def result_of(options: dict[str, Any], *, has_reference: bool) -> dict[str, Any]:
    """Return what rank 0 reports of a repeat that ends well."""
    verdict = options.get("verdict", "identical" if has_reference else "unchecked")
    correctness = {"verdict": verdict, "error_ratio": 1.0}
    return RESULT | {"correctness": correctness, "timing": TIMING} | options.get("result", {})


def run_machine(job: RankJob) -> None:
    """Report a yardstick that measured nothing: the real one takes half a second of both cores."""
    if job.rank == 0:
        write_json(Path(job.result_path), {"version": 1, "seconds": {}})


def run_reference(job: ReferenceJob) -> None:
    """Leave a file where the trajectory would be, or fail as the options say."""
    with Path(job.run_dir, "reference.calls").open("a") as calls:
        calls.write("x")
    match job.trial["workload"]["options"].get("reference"):
        case "fails":
            raise RuntimeError("no reference today")
        case "bad_input":
            write_error(job.result_path, "reference", "usage", "no such module")
            raise SystemExit(1)
        case "disk_full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "no_file":
            return
    Path(job.run_dir, "prefix-reference").write_text(sys.prefix)
    Path(job.reference_path).write_text("reference")


def _wait_for(gate: Path) -> None:
    """Wait until a file is there, but not for ever."""
    give_up = time.monotonic() + 600
    while not gate.exists() and time.monotonic() < give_up:
        time.sleep(0.02)


def _judge(job: RankJob) -> None:
    """Read the reference as a worker does: what is not as `run_reference` left it is damaged."""
    file = Path(job.reference_path or "")
    if not file.is_file() or file.read_text() != "reference":
        raise DamagedReferenceError("reference: damaged")


def _crash(_: RankJob) -> None:
    print("about to fail")
    raise RuntimeError("the model fell over")


def _tell_secret(job: RankJob) -> None:
    """Print a secret and fail with it, without its name."""
    secret = job.trial["workload"]["options"]["api_key"]
    print(f"connecting with {secret}", flush=True)
    raise RuntimeError(f"cannot reach the store with {secret} at https://user:{secret}@host")


def _crash_once(job: RankJob) -> None:
    marker = Path(job.base_dir, "crashed.once")
    if not marker.exists():
        marker.touch()
        _crash(job)


def _allocate(_: RankJob) -> None:
    raise MemoryError("cannot allocate 7 GiB")


def _leave_a_process(job: RankJob) -> None:
    """Start a process that outlives this one, in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(job.run_dir, "orphan.pid").write_text(str(child.pid))


def _leave_a_process_and_wait(job: RankJob) -> None:
    if not Path(job.run_dir, "orphan.pid").exists():
        _leave_a_process(job)
        _report_pid(job)


def _report_pid(job: RankJob) -> None:
    Path(job.run_dir, f"rank{job.rank}.pid").write_text(str(os.getpid()))
    time.sleep(600)


def _wait_once(job: RankJob) -> None:
    """Wait to be killed, the first time only."""
    if not Path(job.run_dir, f"rank{job.rank}.pid").exists():
        _report_pid(job)


def _fill_the_disk(_: RankJob) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _describe(job: RankJob) -> None:
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    threads = job.trial["run"]["threads_per_rank"]
    print(f"group={os.getpgid(0)} session={os.getsid(0)} cpus={cpus} threads={threads}")
    if "api_key" in (options := job.trial["workload"]["options"]):
        print(options)


def _step_on(job: RankJob) -> None:
    """Take a step every 100 ms for ever, telling of each."""
    for step in range(1, 1000):
        with Path(job.progress_path or os.devnull).open("a") as progress:
            progress.write(json.dumps({"phase": "timed", "step": step, "steps": 1000, "seconds": 0.1}) + "\n")
        time.sleep(0.1)


def _compute(_: RankJob) -> None:
    """Use half a second of CPU time."""
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass


def _step_last(job: RankJob) -> None:
    """Tell of a step as the last thing."""
    with Path(job.progress_path or os.devnull).open("a") as progress:
        progress.write(json.dumps({"phase": "timed", "step": 7, "steps": 7, "seconds": 0.1}) + "\n")


def _where(job: RankJob) -> None:
    """Say under which environment this rank runs."""
    name = str(job.trial["engine"].get("engine_python")).replace(os.sep, "_")
    Path(job.run_dir, f"prefix-{name}").write_text(sys.prefix)


ACTIONS: dict[str, Callable[[RankJob], None]] = {
    "where": _where,
    "judge": _judge,
    "wait_once": _wait_once,
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "no_result": lambda _: os._exit(0),
    "describe": _describe,
    "disk_full": _fill_the_disk,
    "compute": _compute,
    "step_on": _step_on,
    "step_last": _step_last,
    "die": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "crash": _crash,
    "crash_once": _crash_once,
    "tell_secret": _tell_secret,
    "hang": lambda _: time.sleep(600),
    "exit": lambda _: sys.exit(3),
    "allocate": _allocate,
    "orphan": _leave_a_process,
    "orphan_and_wait": _leave_a_process_and_wait,
    "wait": _report_pid,
}
