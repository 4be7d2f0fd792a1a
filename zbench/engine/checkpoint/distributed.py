"""The engine's state for `torch.distributed.checkpoint`: sharded, resharded at loading, saved asynchronously.

    import torch.distributed.checkpoint as dcp

    dcp.save({"engine": DistributedState(engine)}, checkpoint_id=path)  # or async_save
    dcp.load({"engine": DistributedState(engine)}, checkpoint_id=path)  # at any world size and stage

The keys are those of `state`. What is as long as a parameter is a DTensor of its flattened elements, of which
every rank has an equal part. No rank holds more than that part and one whole tensor.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from zbench.engine.checkpoint.files import Saves
from zbench.engine.checkpoint.state import StateEntry

_WHOLE = ("engine.", "group.", "group_of.", "step.", "buffer.")  # small: every rank has them


class DistributedState:
    """A `Stateful` of `torch.distributed.checkpoint`. Every rank of the engine's group saves and loads alike.

    group: the process group that the engine was built with.
    """

    def __init__(self, engine: Saves, group: dist.ProcessGroup | None = None) -> None:
        self._engine, self._group = engine, group

    def state_dict(self) -> dict[str, Any]:
        """Return key -> DTensor, or a tensor that every rank has: copies, read one after the other."""
        mesh = self._mesh()
        return {entry.key: _part(entry, mesh) for entry in self._engine.state_entries()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the values over; UsageError where they do not fit, and nothing has changed then."""
        shapes = {entry.key: entry.shape for entry in self._engine.state_entries()}
        self._engine.load_state_dict(_Gathered(state, shapes))

    def _mesh(self) -> DeviceMesh | None:
        if self._engine.collectives.world_size == 1:
            return None
        return DeviceMesh.from_group(self._group or cast(dist.ProcessGroup, dist.group.WORLD), "cpu")


def _part(entry: StateEntry, mesh: DeviceMesh | None) -> Any:
    """Return this rank's part of one tensor; reading it is a collective."""
    whole = entry.read().cpu()
    if entry.key.startswith(_WHOLE) or not whole.numel() or mesh is None:
        return whole.reshape(-1)
    from torch.distributed.tensor import DTensor, Shard  # imported late: it takes a second

    parts = whole.reshape(-1).split(-(-whole.numel() // mesh.size()))  # type: ignore[no-untyped-call]
    rank = mesh.get_local_rank()
    local = parts[rank].clone() if rank < len(parts) else whole.new_empty(0)
    return DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size([whole.numel()]), stride=(1,))


class _Gathered(Mapping[str, Tensor]):
    """Whole tensors, put together when they are asked for: by every rank in the same order."""

    def __init__(self, state: Mapping[str, Any], shapes: Mapping[str, torch.Size]) -> None:
        self._state, self._shapes = state, shapes

    def __getitem__(self, key: str) -> Tensor:
        value = self._state[key]
        whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
        return whole.view(self._shapes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)
