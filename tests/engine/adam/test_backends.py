"""Backends keep the protocol of Adam: the native one, and the CUDA kernels, on a host and on a device."""

import pytest

from tests.engine.adam.host_kernels import COMPILER, HostKernels
from tests.engine.lattice import NO_CARD
from zbench.engine import adam
from zbench.testing.adam import AdamBackendSuite


class TestNative(AdamBackendSuite):
    def backend(self) -> adam.AdamBackend:
        return adam.NativeAdam(threads=2)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
class TestCudaKernelsOnTheHost(AdamBackendSuite):
    test_a_wrong_task_stops_the_whole_call_and_is_named = None  # the kernels alone: tasks are checked before

    def backend(self) -> adam.AdamBackend:
        return HostKernels()


@pytest.mark.cuda
@NO_CARD
class TestCuda(AdamBackendSuite):
    device = "cuda"

    def backend(self) -> adam.AdamBackend:
        return adam.CudaAdam()
