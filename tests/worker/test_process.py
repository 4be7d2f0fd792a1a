"""The process group that a rank joins."""

import pytest
import torch

from zbench.worker.process import backend_for


@pytest.mark.parametrize(
    ("device", "local_ranks", "devices", "backend"),
    [
        ("cpu", 2, 0, "gloo"),
        ("cpu", 2, 8, "gloo"),
        ("cuda", 1, 1, "cpu:gloo,cuda:nccl"),
        ("cuda", 8, 8, "cpu:gloo,cuda:nccl"),
        ("cuda", 2, 1, "gloo"),
    ],
)
def test_ranks_that_share_a_device_do_without_nccl(
    device: str, local_ranks: int, devices: int, backend: str
) -> None:
    assert backend_for(torch.device(device), local_ranks, devices) == backend
