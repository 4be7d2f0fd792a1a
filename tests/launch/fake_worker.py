"""Workers without torch, to see what launch makes of them. What a rank does is said in `workload.options`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from zbench.worker.job import RankJob, ReferenceJob, write_json

TIMING = {"step_seconds": [0.01, 0.01], "median_step_s": 0.01, "tokens_per_s": 1000.0, "samples_per_s": 10.0}
MEMORY = {"peak_device_bytes": 1000, "peak_host_bytes": 0, "peak_rss_bytes": 5000}
RESULT: dict[str, Any] = {
    "outcome": "ok",
    "error": None,
    "timing": TIMING,
    "memory": MEMORY,
    "traffic": {},
    "warnings": [],
}


def run_rank(job: RankJob) -> None:
    """Do to this rank what the trial's options say, then, on rank 0, report success."""
    options = job.trial["workload"]["options"]
    rank_of_trouble = options.get("rank", 0)
    if "sleep" in options:
        time.sleep(options["sleep"])
    if job.rank == rank_of_trouble and "do" in options:
        ACTIONS[options["do"]](job)
    elif options.get("peers") == "wait":
        time.sleep(600)
    if job.rank == 0:
        verdict = options.get("verdict", "identical" if job.reference_path else "unchecked")
        correctness = {"verdict": verdict, "error_ratio": 1.0}
        write_json(Path(job.result_path), RESULT | {"correctness": correctness})


def run_reference(job: ReferenceJob) -> None:
    """Leave a file where the trajectory would be, or fail as the options say."""
    if job.trial["workload"]["options"].get("reference") == "fails":
        raise RuntimeError("no reference today")
    Path(job.reference_path).write_text("reference")


def _die(_: RankJob) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash(_: RankJob) -> None:
    print("about to fail")
    raise RuntimeError("the model fell over")


def _hang(_: RankJob) -> None:
    time.sleep(600)


def _exit_quietly(_: RankJob) -> None:
    sys.exit(3)


def _allocate(_: RankJob) -> None:
    raise MemoryError("cannot allocate 7 GiB")


def _leave_a_process(job: RankJob) -> None:
    """Start a process that outlives this one, in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(job.run_dir, "orphan.pid").write_text(str(child.pid))


def _report_pid(job: RankJob) -> None:
    Path(job.run_dir, f"rank{job.rank}.pid").write_text(str(os.getpid()))
    time.sleep(600)


ACTIONS = {
    "die": _die,
    "crash": _crash,
    "hang": _hang,
    "exit": _exit_quietly,
    "allocate": _allocate,
    "orphan": _leave_a_process,
    "wait": _report_pid,
}
