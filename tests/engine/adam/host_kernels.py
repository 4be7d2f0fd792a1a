"""The CUDA kernels compiled for the host, behind the AdamBackend interface."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from zbench import _native
from zbench.engine.adam import AdamTask
from zbench.engine.adam.native import DTYPE_CODES, build_plan, norm_rows
from zbench.engine.transport.sums import sum_blocks

SOURCES = Path(__file__).resolve().parents[3] / "csrc"
COMPILER = shutil.which("c++")
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-fno-math-errno", "-Wno-unknown-pragmas"]


@functools.cache
def library() -> ctypes.CDLL:
    """Compile csrc/tests/cuda_on_host.cpp, once for all tests of a process."""
    assert COMPILER is not None
    folder = tempfile.mkdtemp()
    path = Path(folder) / "cuda_on_host.so"
    source = SOURCES / "tests" / "cuda_on_host.cpp"
    subprocess.run(
        [COMPILER, *FLAGS, "-shared", "-fPIC", "-pthread", f"-I{SOURCES}", str(source), "-o", str(path)],
        check=True,
    )
    loaded = ctypes.CDLL(str(path))
    shutil.rmtree(folder)
    number, long, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    loaded.zbench_host_update.argtypes = [pointer, number, long, number, number, number]
    loaded.zbench_host_square_sums.argtypes = [pointer, number, long, number, pointer]
    loaded.zbench_host_sum_parts.argtypes = [pointer, pointer, number, long, long, number]
    return loaded


def sum_parts(out: Tensor, parts: Tensor) -> None:
    """Run the kernel of sums in rank order for parts [W, n]."""
    numel = out.numel()
    code = DTYPE_CODES[parts.dtype]
    blocks = sum_blocks(numel)
    library().zbench_host_sum_parts(out.data_ptr(), parts.data_ptr(), len(parts), numel, blocks, code)


class HostKernels:
    """Runs each kernel's own code, thread by thread, with the rows that a device would get."""

    def update(self, tasks: Sequence[AdamTask], *, grad_scale: float = 1.0) -> None:
        """See AdamBackend.update."""
        for dtypes, blocks, count, rows in build_plan(tasks).device_rows(grad_scale=grad_scale):
            library().zbench_host_update(rows, count, blocks, *dtypes)

    def add_square_sums(self, grads: Sequence[Tensor], sums: Tensor) -> None:
        """See AdamBackend.add_square_sums."""
        for (dtype,), blocks, count, rows in _native.device_norm_rows(grads=norm_rows(grads)):
            library().zbench_host_square_sums(rows, count, blocks, dtype, sums.data_ptr())
