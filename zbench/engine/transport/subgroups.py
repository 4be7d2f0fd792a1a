"""Process groups of some ranks of another group, made so that no rank waits for ever."""

import torch.distributed as dist

from zbench.errors import UsageError


def subgroup(group: dist.ProcessGroup, size: int) -> dist.ProcessGroup:
    """Return a new process group of `size` consecutive ranks of `group`, this rank among them.

    Every rank of `group` calls it, and `size` divides their number. UsageError where they could not agree on
    a name.
    """
    ranks = dist.get_process_group_ranks(group)
    groups = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    mine = dist.get_rank(group) // size
    if len(ranks) == dist.get_world_size():
        made = [dist.new_group(members) for members in groups][mine]
    else:
        _check_names_agree(group)
        made = dist.new_group(groups[mine], use_local_synchronization=True)
    assert isinstance(made, dist.ProcessGroup), "this rank belongs to its own group"
    return made


def _check_names_agree(group: dist.ProcessGroup) -> None:
    """torch names a group of some ranks by how many groups its maker belongs to: ranks that differ in it
    would wait for one another for ever.
    """
    counts = [0] * dist.get_world_size(group)
    dist.all_gather_object(counts, len(dist.distributed_c10d._world.pg_names), group=group)
    if len(set(counts)) > 1:
        raise UsageError(
            f"the ranks of this process group belong to {counts} process groups, and torch can make another"
            " only where all belong to as many; make the group of the engine first, or use the default one"
        )
