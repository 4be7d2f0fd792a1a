"""The Adam contract: what one update reads and writes. Every backend returns the same bits.

The update is a pure function of these arguments. There is no step counter and no other state: calling it in
any partition, order or number of subgroups, from any thread, gives the same bits as one call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

NORM_CHUNK = 256
"""Elements in a canonical chunk of the global norm. In flat layouts parameters begin at multiples of it."""


@dataclass(frozen=True, slots=True)
class Hyper:
    """Scalars of one optimizer group, in double. `decoupled`: AdamW; else decay is added to the gradient."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    bias_correction: bool = True
    decoupled: bool = True


def hyper_of(group: Mapping[str, Any]) -> Hyper:
    """Return the scalars of a group with torch's keys."""
    beta1, beta2 = group["betas"]
    lr, eps, decay = float(group["lr"]), group["eps"], group["weight_decay"]
    return Hyper(lr, beta1, beta2, eps, decay, group["bias_correction"], group["decoupled"])


@dataclass(slots=True)
class Slot:
    """The tensors that one update replaces: 1-D, contiguous, equal length n.

    param [n] float32 (master weights); exp_avg, exp_avg_sq [n] float32 or bfloat16; max_exp_avg_sq [n]
    likewise, present exactly where AMSGrad is on.
    """

    param: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    max_exp_avg_sq: Tensor | None = None


@dataclass(slots=True)
class AdamTask:
    """One run of consecutive elements that share a step and hyperparameters.

    slot: read, and written in place unless `into` is given. grad [n]: float32, bfloat16 or float16.
    step: 1 for the first update. into: where the result goes instead (the other half of a double buffer).
    param_out [n]: receives the new parameter rounded to its dtype (bfloat16, float16 or float32).
    rounding_seed: None rounds bfloat16 moments to nearest even; an integer (0 to 2^64 - 1) rounds them
    stochastically and reproducibly: the random bits are a hash of (seed, step, element index) and of
    nothing else.
    rounding_offset: the element index (in the rounding stream) of this task's first element, so that a
    partition of a tensor draws the same random bits as the whole.

    Arithmetic is float32 throughout: moments are widened, and rounded once when they are stored; the
    parameter is updated from the moments before that rounding. Every NaN that is stored is the quiet one
    with no payload.
    """

    slot: Slot
    grad: Tensor
    step: int
    hyper: Hyper
    into: Slot | None = None
    param_out: Tensor | None = None
    rounding_seed: int | None = None
    rounding_offset: int = 0


class AdamBackend(Protocol):
    """Where the update runs. Implementations: reference (plain torch), native (CPU), cuda."""

    def update(
        self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0, nonfinite: Tensor | None = None
    ) -> None:
        """Apply Adam to every task; each gradient is multiplied once by float32(grad_scale).

        nonfinite (int64, one element, on the tasks' device): the number of elements whose new parameter is
        not finite in the dtype it is kept in (param_out's where there is one) is added to it. ValueError
        names the argument that is wrong (dtype, device, shape, layout, overlap, step or hyperparameter);
        then nothing has been written.
        """

    def chunk_square_sums(self, grads: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """out[k][j] (float64) = canonical sum of squares of grads[k][256 j : 256 (j+1)], in double.

        The order within a chunk is fixed: lane i (0..7) adds elements i, i+8, i+16, ... in turn; then the
        lanes are added as ((0+4)+(2+6))+((1+5)+(3+7)). A non-finite gradient makes its chunk's sum non-
        finite, so the norm doubles as the overflow check. Lengths need not be multiples of 256: the last
        chunk is padded with zeros.
        """
