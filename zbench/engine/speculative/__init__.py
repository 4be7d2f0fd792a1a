"""The speculative schedule: optimizer updates under the backward pass, validated after it."""

from zbench.engine.speculative.assemble import Settings, speculate
from zbench.engine.speculative.schedule import Knowledge, Speculative

__all__ = ["Knowledge", "Settings", "Speculative", "speculate"]
