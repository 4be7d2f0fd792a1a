"""The compiled Adam core (csrc/). Addresses are those of contiguous tensors that the caller keeps alive."""

from collections.abc import Sequence

_Slot = tuple[int, int, int, int]

class Hyper:
    def __init__(
        self,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        decoupled: bool,
    ) -> None: ...

class Plan:
    def __len__(self) -> int: ...
    def add(
        self,
        slot: _Slot,
        into: _Slot,
        grad: int,
        param_out: int,
        numel: int,
        dtypes: tuple[int, int, int],
        rounding_seed: int | None,
        rounding_offset: int,
    ) -> int: ...
    def set_step(self, index: int, step: int, hyper: Hyper) -> None: ...
    def set_grad(self, index: int, grad: int, dtype: int) -> None: ...
    def set_param_out(self, index: int, param_out: int) -> None: ...
    def find_overlap(self) -> tuple[int, str, int, str] | None: ...
    def run(self, grad_scale: float, threads: int) -> int: ...
    def device_rows(self, grad_scale: float) -> list[tuple[tuple[int, int, int], int, int, bytes]]: ...

def square_sums(grads: Sequence[tuple[int, int, int, int]], threads: int) -> None: ...
def sum_parts(
    out: int,
    parts: Sequence[int],
    numel: int,
    dtype: int,
    accumulate: bool,
    squares: int,
    threads: int,
) -> None: ...
def add_cast(out: int, grad: int, numel: int, dtypes: tuple[int, int], threads: int) -> None: ...
def device_norm_rows(
    grads: Sequence[tuple[int, int, int, int]],
) -> list[tuple[tuple[int], int, int, bytes]]: ...
def available_isas() -> list[str]: ...
def isa() -> str: ...
def force_isa(name: str) -> None: ...
