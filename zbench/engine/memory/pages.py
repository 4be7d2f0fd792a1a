"""Huge pages for large CPU buffers that each step allocates.

Such a buffer, written once and then freed, costs mostly page faults: on a virtual machine the first write of
20 MB took 11 ms, where a later one took 0.6. With huge pages it costs a fraction of that. Where the kernel's
policy for transparent huge pages is `always` or `never`, this changes nothing.
"""

import ctypes
import mmap
import sys
from functools import partial

from torch import Tensor

from zbench.engine.adam.native import call_native

_LEAST_BYTES = 4 << 20  # two huge pages of the usual size


def prefer_huge_pages(buffer: Tensor) -> None:
    """Ask the kernel to back a large `buffer`, contiguous and not yet written, with huge pages."""
    if sys.platform != "linux" or buffer.device.type != "cpu" or buffer.nbytes < _LEAST_BYTES:
        return
    call_native(partial(_advise, buffer), [buffer])


def _advise(buffer: Tensor) -> None:
    start = -(-buffer.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (buffer.data_ptr() + buffer.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(mmap.MADV_HUGEPAGE))


_madvise = ctypes.CDLL(None).madvise  # its failure is no harm: the pages are small then
