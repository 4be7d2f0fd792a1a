"""What an engine's state is read by: whole or in parts, by every rank."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from zbench.engine.checkpoint.state import EngineState, LocalState, StateEntry


class ReadsState(ABC):
    """Every rank calls the same methods in the same order: they are collective."""

    model: nn.Module

    @abstractmethod
    def checked_state(self) -> EngineState:
        """Return the state with all edits taken over; UsageError for a parameter that is not in it."""

    def full_parameters(self) -> dict[str, Tensor]:
        """Return name -> a copy of the whole parameter (float32 masters where trained), on every rank."""
        values = self.checked_state().full_values()
        return {name: values[name] for name, _ in self.model.named_parameters()}

    def first_moments(self) -> dict[str, Tensor]:
        """Return name -> the whole exp_avg in float32 of every trained parameter, on every rank."""
        moments = self.checked_state().full_moments("exp_avg")
        return {name: value.float() for name, value in moments.items()}

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Return everything a resumed run needs, the same on every rank; `state` lists the keys."""
        return self.checked_state().full()

    def state_entries(self) -> list[StateEntry]:
        """Return the same as entries that are read one at a time, by every rank in the same order."""
        return list(self.checked_state().entries())

    @torch.no_grad()
    def local_state(self) -> LocalState:
        """Return this rank's part of the same, for a sharded checkpoint."""
        return self.checked_state().local()
