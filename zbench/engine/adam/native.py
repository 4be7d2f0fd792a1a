"""NativeAdam: the update on the CPU, in one pass over memory and one parallel region for all tasks."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from zbench import _native
from zbench.engine.adam.checks import check_grad_scale, check_nonfinite, check_norm_tensors, check_tasks
from zbench.engine.adam.contract import AdamTask
from zbench.engine.adam.ops import call_native
from zbench.engine.adam.plan import DTYPE_CODES
from zbench.engine.adam.plan_cache import PlanCache, flatten


class NativeAdam:
    """The C++ kernels behind the AdamBackend interface. Tensors live on the CPU; calls release the GIL.

    threads: how many threads share one call; None uses torch.get_num_threads() at each call. The bits do
    not depend on it, nor on the instruction set (the best one here; the environment variable ZBENCH_ISA
    names another).
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads: expected at least 1, got {threads}")
        self._threads = threads
        self._plans = PlanCache("cpu")

    @property
    def threads(self) -> int:
        """Threads that the next call may use."""
        return torch.get_num_threads() if self._threads is None else self._threads

    def update(
        self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0, nonfinite: Tensor | None = None
    ) -> None:
        """See AdamBackend.update. Fake tensors are checked and left alone: the update allocates nothing."""
        check_grad_scale(grad_scale)
        check_nonfinite(nonfinite, "cpu")
        flat = flatten(tasks)

        def run() -> None:
            with self._plans.borrowed(tasks, flat) as plan:
                count = plan.run(grad_scale=grad_scale, threads=self.threads)
            if nonfinite is not None:
                nonfinite.add_(count)

        call_native(run, flat.tensors, partial(check_tasks, tasks, "cpu"))

    def chunk_square_sums(self, grads: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """See AdamBackend.chunk_square_sums. Fake tensors are checked and left alone."""
        check_norm_tensors(grads, out, "cpu")
        call_native(partial(self._square_sums, grads, out), [*grads, *out])

    def _square_sums(self, grads: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        _native.square_sums(
            grads=[
                (grad.data_ptr(), sums.data_ptr(), grad.numel(), DTYPE_CODES[grad.dtype])
                for grad, sums in zip(grads, out, strict=True)
            ],
            threads=self.threads,
        )
