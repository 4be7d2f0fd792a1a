"""The ranks of the engine tests: one pool for real runs that simulations are compared with."""

from tests.engine.conftest import one_thread, ranks

__all__ = ["one_thread", "ranks"]
