"""MixedAdam: updates tasks in CPU memory and on an accelerator, each where it is."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from zbench.engine.adam.contract import AdamBackend, AdamTask


class MixedAdam:
    """Several backends behind the AdamBackend interface: each task goes to that of its device type."""

    def __init__(self, backends: Mapping[str, AdamBackend]) -> None:
        self._backends = backends

    def update(
        self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0, nonfinite: Tensor | None = None
    ) -> None:
        """See AdamBackend.update; the accelerator's tasks are launched first, and run beside the CPU's."""
        for kind, backend in self._backends.items():
            if mine := [task for task in tasks if task.grad.device.type == kind]:
                count = None if nonfinite is None else nonfinite.new_zeros(1, device=mine[0].grad.device)
                backend.update(mine, grad_scale=grad_scale, nonfinite=count)
                if nonfinite is not None and count is not None:
                    nonfinite += count.to(nonfinite.device)

    def chunk_square_sums(self, grads: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """See AdamBackend.chunk_square_sums; each sum is taken where its gradient is."""
        for kind, backend in self._backends.items():
            if mine := [k for k, grad in enumerate(grads) if grad.device.type == kind]:
                backend.chunk_square_sums([grads[k] for k in mine], [out[k] for k in mine])
