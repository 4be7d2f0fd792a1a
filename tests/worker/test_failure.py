"""Exceptions and what they mean."""

import pytest
import torch

from zbench.errors import UsageError
from zbench.worker.job import kind_of, message_of


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("workload.model: no"), "usage"),
        (MemoryError(), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (RuntimeError("can't start new thread"), "oom"),
        (OSError(12, "Cannot allocate memory"), "oom"),
        (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4"), "peer_lost"),
        (RuntimeError("size mismatch"), "crashed"),
        (KeyboardInterrupt(), "crashed"),
    ],
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("first line\nsecond"), "ValueError: first line"),
        (MemoryError(), "MemoryError"),
        (UsageError("engine.engine: cannot"), "engine.engine: cannot"),
        (
            UsageError("no loss; expected:\n    loss = model(*batch)\n"),
            "no loss; expected:\n    loss = model(*batch)",
        ),
        (RuntimeError("\n\n  late  "), "RuntimeError: late"),
    ],
)
def test_messages_are_one_line_but_for_advice(error: BaseException, message: str) -> None:
    assert message_of(error) == message


def test_long_messages_are_cut() -> None:
    assert len(message_of(RuntimeError("x" * 5000))) == 400
