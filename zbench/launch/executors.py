"""Which executor runs the trials of a command, and whether it has room for them."""

from collections.abc import Iterable
from pathlib import Path

from zbench.errors import UsageError
from zbench.launch.capacity import check_world_size
from zbench.launch.executor import Executor
from zbench.launch.hosts import HostsExecutor
from zbench.launch.jobs import Targets
from zbench.launch.slurm import SlurmExecutor
from zbench.launch.slurm_jobs import require_slurm
from zbench.launch.slurm_options import SlurmOptions
from zbench.spec.run import RunSpec


def make_executor(
    run_dir: Path, base_dir: Path, slurm: SlurmOptions | None, *, targets: Targets | None = None
) -> Executor:
    """Return the executor: processes on this machine and on hosts that a trial names, or jobs by `slurm`."""
    if slurm is None:
        return HostsExecutor(run_dir, base_dir, targets=targets)
    return SlurmExecutor(run_dir, base_dir, slurm, targets=targets)


def require_room(runs: Iterable[RunSpec], slurm: SlurmOptions | None) -> None:
    """Raise UsageError before anything is made on disk if the ranks of some trial cannot run here."""
    found = list(runs)
    if slurm is not None:
        require_slurm(slurm)
    for run in found:
        if slurm is not None:
            slurm.nodes_for(run)
        elif isinstance(run.hosts, int) and run.hosts > 1:
            raise UsageError(
                f"run.hosts: {run.hosts}: without --slurm the hosts have names; write run: {{hosts: [a, b]}}"
            )
        elif run.world_size % run.host_count:
            raise UsageError(
                f"run.hosts: {run.world_size} ranks cannot be shared out evenly among {run.host_count} hosts"
            )
    if slurm is None:
        check_world_size(max((run.world_size // run.host_count for run in found), default=1))
