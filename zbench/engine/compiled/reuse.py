"""Keeps inductor's generated code from using a reduced gradient's memory again.

Generated code hands freed buffers on to later ones of the same size. A gradient may be sent from where it is,
long after the operator that took it, so its buffer must be freed and nothing more; all others are reused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.codegen.wrapper import FreeIfNotReusedLine
from torch._inductor.ir import FallbackKernel
from torch._inductor.virtualized import V

from zbench.engine.compiled.ops import reduce_gradient


def _reduced_buffers() -> set[str]:
    """Return the names of all buffers that the operators of the graph being compiled take."""
    taken = (op for op in V.graph.operations if isinstance(op, FallbackKernel))
    reads = (op.get_reads() for op in taken if op.op_overload is reduce_gradient)
    return {dependency.name for of_one in reads for dependency in of_one}


@contextmanager
def leave_gradients_alone() -> Iterator[None]:
    """Compile without reuse of reduced gradients' memory."""
    plan = FreeIfNotReusedLine.plan

    def plan_unless_reduced(line: Any, state: Any) -> Any:
        return line if line.node.get_name() in _reduced_buffers() else plan(line, state)

    FreeIfNotReusedLine.plan = plan_unless_reduced  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        FreeIfNotReusedLine.plan = plan  # type: ignore[method-assign]
