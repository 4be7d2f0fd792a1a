"""The outcome of a process group: ok, or which failure, with a message for the user."""

import signal
from dataclasses import replace
from pathlib import Path

from zbench.job.failures import NO_ROOM_STATUS, first_failure
from zbench.launch.process.client import GroupEnd
from zbench.record.record import Failure, Outcome
from zbench.units import format_bytes, format_seconds

_SIGNALS_OF_FAILED_ALLOCATIONS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
_SIGNALS_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_OUTCOMES: dict[str, Outcome] = {
    "oom": "oom", "timeout": "timeout", "pruned": "timeout", "unsupported": "invalid",
}  # fmt: skip
_VMSTAT = Path("/proc/vmstat")


def classify(
    end: GroupEnd,
    *,
    result_path: str,
    deadline: float,
    kernel_oom_kills: int,
    log: str,
    memory_limit: int | None = None,
) -> tuple[Outcome, Failure | None]:
    """Return the outcome and, unless it is ok, the failure.

    kernel_oom_kills: how many processes the kernel's out-of-memory killer took on this machine while the
    group ran. log: the group's log directory, relative to the run directory; the failing rank's file is
    named in the result.
    """
    if end.stopped is not None:
        return "timeout", Failure("pruned", end.stopped, f"{log}/rank0.log")
    killed = next(((rank, -code) for rank, code in end.exits.items() if code < 0), None)
    if killed is not None:
        return _killed(*killed, kernel_oom_kills, memory_limit, log)
    failure = first_failure(result_path, end.ranks)
    if failure is not None:
        return _OUTCOMES.get(failure.kind, "crashed"), replace(failure, log=f"{log}/{failure.log}")
    if end.suspended is not None:
        message = f"rank {end.suspended} was stopped from outside; the others waited for it until run.timeout"
        return "crashed", Failure("killed", message, f"{log}/rank{end.suspended}.log")
    if end.timed_out:
        limit = f"not finished after {format_seconds(deadline)} (run.timeout)"
        message = f"{limit}: allow more with --timeout, or read the ranks' stacks in the logs"
        return "timeout", Failure("timeout", message, f"{log}/rank0.log")
    failed = next(((rank, code) for rank, code in end.exits.items() if code != 0), None)
    if failed is None:
        return "ok", None
    rank, code = failed
    kind = "crashed"
    message = f"rank {rank} exited with status {code} and no message"
    if code == NO_ROOM_STATUS:
        kind = "storage"
        message = f"rank {rank} failed and could not write the reason (is TMPDIR full?)"
    return "crashed", Failure(kind, message, f"{log}/rank{rank}.log")


def kernel_oom_kills() -> int:
    """Return how many processes the kernel's out-of-memory killer has taken since boot (0 if unknown)."""
    lines = _VMSTAT.read_text().splitlines() if _VMSTAT.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _killed(
    rank: int, number: int, kernel_oom_kills: int, memory_limit: int | None, log: str
) -> tuple[Outcome, Failure]:
    """Return the outcome and failure of a rank that a signal ended.

    Under a memory limit, a library that cannot allocate memory, or a thread's stack, aborts silently.
    """
    where = f"{log}/rank{rank}.log"
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if memory_limit is not None and number in _SIGNALS_OF_FAILED_ALLOCATIONS:
        message = f"rank {rank} ended by {name} under run.memory_limit of {format_bytes(memory_limit)}"
        return "oom", Failure("oom", message, where)
    if number == signal.SIGKILL and kernel_oom_kills > 0:
        message = f"rank {rank} was killed by the kernel: the machine ran out of memory"
        return "oom", Failure("oom", message, where)
    if number in _SIGNALS_FROM_OUTSIDE:
        return "crashed", Failure("killed", f"rank {rank} was killed from outside by {name}", where)
    return "crashed", Failure("crashed", f"rank {rank} was killed by {name}", where)
