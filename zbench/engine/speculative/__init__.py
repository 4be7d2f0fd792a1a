"""The speculative schedule: optimizer updates during backward, validated after it."""

from zbench.engine.speculative.assemble import SpeculationSettings, speculate
from zbench.engine.speculative.schedule import Speculative, StepAssumptions

__all__ = ["SpeculationSettings", "Speculative", "StepAssumptions", "speculate"]
