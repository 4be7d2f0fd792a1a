"""Which executor runs the trials of a command, and whether it has room for them."""

from collections.abc import Iterable
from pathlib import Path

from zbench.launch.capacity import check_world_size
from zbench.launch.executor import Executor
from zbench.launch.jobs import Targets
from zbench.launch.local import LocalExecutor
from zbench.launch.slurm import SlurmExecutor
from zbench.launch.slurm_jobs import require_slurm
from zbench.launch.slurm_options import SlurmOptions


def make_executor(
    run_dir: Path, base_dir: Path, slurm: SlurmOptions | None, *, targets: Targets | None = None
) -> Executor:
    """Return the executor: processes on this machine, or jobs where `slurm` says how to submit them."""
    if slurm is None:
        return LocalExecutor(run_dir, base_dir, targets=targets)
    return SlurmExecutor(run_dir, base_dir, slurm, targets=targets)


def require_room(world_sizes: Iterable[int], slurm: SlurmOptions | None) -> None:
    """Raise UsageError before anything is made on disk if some world size cannot run here."""
    sizes = set(world_sizes) or {1}
    if slurm is None:
        check_world_size(max(sizes))
        return
    require_slurm(slurm)
    for size in sorted(sizes):
        slurm.nodes_for(size)
