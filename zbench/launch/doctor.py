"""Checks whether this machine can run trials, and how well. Processes start in the same way as a trial's."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from zbench.cores import in_ranges
from zbench.errors import UsageError, ZbenchError
from zbench.launch.disturbance import free_cores
from zbench.launch.process.client import THREAD_VARIABLES
from zbench.launch.process.local import LocalExecutor, call
from zbench.launch.trial import TrialRunner
from zbench.record.checking import checked
from zbench.record.environment import machine_facts, software_facts
from zbench.record.locks import DirectoryLock
from zbench.spec import environments
from zbench.spec.peers import PEERS, elsewhere
from zbench.spec.run import slow_update
from zbench.spec.trial import TrialSpec
from zbench.topology import pinning_refusal, this_host
from zbench.units import format_bytes, format_seconds

_RUN = {"world_size": 2, "device": "cpu", "warmup_steps": 0, "steps": 1}
TWO_RANKS = {"workload": {"model": "mlp"}, "run": _RUN, "engine": {}, "verify": {"mode": "off"}}
_LITTLE_DISK = 1 << 30
_BUSY_SHARE = 0.1

Status = Literal["ok", "info", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    `fail`: trials cannot run; `warn`: measurements will be noisy or wrong; `info`: something optional is
    missing, such as an engine.
    """

    name: str
    status: Status
    text: str

    def to_json(self) -> dict[str, str]:
        """Return plain values."""
        return asdict(self)


def examine(output_dir: Path, environments: Sequence[str] = ()) -> Iterator[Check]:
    """Yield every check in the order of the report; the slow ones, which start processes, come last.

    environments: values for `engine_python`; the report says which engines run in each.
    """
    yield from _machine()
    yield from _threads()
    yield from _surroundings(output_dir)
    for written in environments:
        yield from _environment(written)
    yield from trial_checks()


def _machine() -> Iterator[Check]:
    software = software_facts()
    versions = ", ".join(f"{name} {version}" for name, version in software.items() if version)
    yield Check("versions", "ok", versions)
    machine = machine_facts()
    cores = f"{machine['cores']} cores, {machine['threads']} threads"
    cpu = f"{machine['cpu']} ({machine['architecture']}), {cores}: {' '.join(machine['isa'])}"
    yield Check("cpu", "ok", cpu)
    memory = psutil.virtual_memory()
    yield Check("memory", "ok", f"{format_bytes(memory.available)} available of {format_bytes(memory.total)}")


def _threads() -> Iterator[Check]:
    cores = this_host().cores
    cpus = sum(len(core) for core in cores)
    text = f"{len(cores)} usable cores ({cpus} threads)"
    if (refusal := pinning_refusal(os.sched_getaffinity(0))) is not None:
        yield Check("affinity", "warn", f"{text}; ranks cannot be pinned to them: {refusal}")
    elif cpus == os.cpu_count():
        yield Check("affinity", "ok", text)
    else:
        yield Check("affinity", "warn", f"{text} of {os.cpu_count()}: taskset or cgroup")
    quota = _cpu_quota()
    if quota is not None and quota < cpus:
        text = f"the cgroup allows {quota:g} CPUs of {cpus}: steps will be throttled"
        yield Check("cpu quota", "warn", text)
    ignored = sorted(name for name in os.environ if name.startswith(THREAD_VARIABLES))
    if ignored:
        text = f"{', '.join(ignored)}: not passed on to trials; use run.threads_per_rank"
        yield Check("variables", "info", text)
    load = os.getloadavg()[0]
    busy = load > max(1.0, _BUSY_SHARE * cpus)
    text = f"{load:.2f} in the last minute" + (": figures will be noisy; end other programs" * busy)
    yield Check("load", "warn" if busy else "ok", text)
    free = free_cores()
    text = f"{in_ranges(free)} are free now (`--cores`)" if free else "none is free now"
    yield Check("free cores", "ok" if free else "warn", text)
    files = Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    governors = {file.read_text().strip() for file in files}
    if governors - {"performance"}:
        text = f"{', '.join(sorted(governors))}: clock rates vary; `performance` is steadier"
        yield Check("governor", "warn", text)


def _cpu_quota() -> float | None:
    """Return how many CPUs the control group allows, None for no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _surroundings(output_dir: Path) -> Iterator[Check]:
    place = next(p for p in [output_dir.absolute(), *output_dir.absolute().parents] if p.exists())
    free = shutil.disk_usage(place).free
    text = f"{output_dir}: {format_bytes(free)} free"
    if os.access(place, os.W_OK):
        yield Check("results", "warn" if free < _LITTLE_DISK else "ok", text)
        yield from _locks(place)
    else:
        yield Check("results", "fail", f"{text}, not writable; use -o DIR")
    all_files = list(checked(output_dir)) if output_dir.is_dir() else []
    damaged = [file.problem for file in all_files if file.problem]
    for problem in damaged:
        yield Check("files", "warn", problem)
    if all_files and not damaged:
        yield Check("files", "ok", f"{len(all_files)} of runs, baselines and tags are as they were written")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Check("open files", "ok" if files >= 1024 else "warn", f"{files} allowed (ulimit -n)")


def _locks(place: Path) -> Iterator[Check]:
    try:
        with tempfile.TemporaryDirectory(dir=place) as probe:
            DirectoryLock(Path(probe)).release()
        yield Check("locks", "ok", "flock works there")
    except (UsageError, OSError) as error:
        yield Check("locks", "fail", str(error))


def _environment(written: str) -> Iterator[Check]:
    """Yield the versions of another Python environment, and which engines run there, as `plan` says it."""
    there = environments.environment(written, Path.cwd())
    if isinstance(there, str):
        yield Check("engine_python", "info", there)
        return
    facts = ", ".join(f"{name} {value}" for name, value in there.facts().items())
    yield Check("engine_python", "ok", f"{written}: {facts}")
    for name in ("builtin", *PEERS):
        engine = elsewhere(name, written, Path.cwd())
        yield _usable(f"  engine {name}", engine if isinstance(engine, str) else None)


def _usable(name: str, problem: str | None) -> Check:
    return Check(name, "info" if problem else "ok", problem or "usable")


def trial_checks() -> Iterator[Check]:
    """Yield what a trial server and two ranks, started here, tell."""
    executor = LocalExecutor(None, Path.cwd())
    with TrialRunner(executor, executor.run_dir) as runner:
        launcher = executor.launchers[None]
        ready = launcher.wait_until_ready()
        for problem in ready.problems:
            yield Check("imports", "fail", problem)
        yield Check("trial server", "ok", f"imports take {format_seconds(ready.seconds)}, once a sweep")
        try:
            yield from _facts_checks(call(launcher, "zbench.worker.facts:report", {}, 1, patience=60.0))
        except ZbenchError as error:
            yield Check("torch", "fail", str(error))
        record = runner.run(TrialSpec.model_validate(TWO_RANKS))
        ended = f"trained over gloo and ended within {format_seconds(record.elapsed_s or 0.0)}"
        failed = record.error.message if record.error else None
        yield Check("two ranks", "fail" if failed else "ok", failed or ended)


def _facts_checks(facts: dict[str, Any]) -> Iterator[Check]:
    torch, bandwidth = facts["torch"], facts["bandwidth"]
    backends = ", ".join(torch["backends"])
    yield Check("torch", "ok", f"{torch['version']}, {torch['threads']} threads, {backends}")
    rate = f"{bandwidth['bytes_per_s'] / 1e9:.1f} GB/s"
    yield Check("bandwidth", "ok", f"{rate} measured ({bandwidth['threads']} threads, a = b + s c)")
    isas = facts["isas"]
    kernels = f"{isas['in use']} in use; available: {', '.join(isas['available'])}"
    yield Check("native kernels", "ok", kernels)
    yield _usable("cuda kernels", facts["cuda_problem"])
    for index, device in enumerate(facts["cuda"]):
        problem = device["kernels_problem"]
        kernels = slow_update(problem) if problem else "every kernel ran, with the CPU's bits"
        name = f"{device['name']} ({format_bytes(device['memory_bytes'])})"
        yield Check(f"cuda:{index}", "warn" if problem else "ok", f"{name}; {kernels}")
    if not facts["cuda"]:
        yield Check("cuda devices", "info", "none; trials run on the CPU")
    shim = facts["memory_shim"]
    exact = "exact: every allocation of torch is counted"
    yield Check("memory meter", "warn" if shim else "ok", shim or exact)
    uncounted = facts["instructions"]
    text = f"not counted: {uncounted}" if uncounted else "counted: instructions retired a step are compared"
    yield Check("instructions", "info" if uncounted else "ok", text)
    for name, problem in facts["engines"].items():
        if problem and name == "builtin":
            yield Check("engine builtin", "fail", problem)
        else:
            yield _usable(f"engine {name}", problem)
