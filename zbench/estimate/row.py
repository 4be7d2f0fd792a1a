"""The estimates of one configuration as JSON and as a row of a table."""

from dataclasses import dataclass
from typing import Any

from zbench.estimate.result import Estimate, SimulationOutcome
from zbench.estimate.roofline import StepTime, moved
from zbench.estimate.search import Limits
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes, format_seconds

_DAY = 86_400.0  # seconds
_STATE = ("parameters", "gradients", "master", "moments")


@dataclass(frozen=True, slots=True)
class EstimateRow:
    """The estimates of one configuration. memory: bytes of one device, if given. limits, time: if requested.

    training: (tokens, range of seconds to train them, or why that is unknown).
    """

    trial: TrialSpec
    outcome: SimulationOutcome
    memory: int | None = None
    limits: Limits | None = None
    time: StepTime | str | None = None
    training: tuple[int, tuple[float, float] | str] | None = None

    @property
    def estimate(self) -> Estimate | None:
        """Return the estimate; None if the configuration could not be simulated."""
        return self.outcome if isinstance(self.outcome, Estimate) else None

    def to_json(self) -> dict[str, Any]:
        """Return the configuration's entry in the JSON document."""
        row: dict[str, Any] = {
            "trial_id": self.trial.trial_id,
            "axes": self.trial.axes,
            "world_size": self.trial.run.world_size,
            "micro_batch_size": self.trial.workload.micro_batch_size,
        }
        estimate = self.estimate
        if estimate is None:
            return {**row, "not_simulated": getattr(self.outcome, "reason", "")}
        row["estimate"] = estimate.to_json()
        row |= row["estimate"].pop("counts")
        row["sent_bytes"], row["received_bytes"] = moved(estimate.traffic, self.trial)
        if self.memory is not None:
            spare = self.memory - estimate.peak_device_bytes
            row |= {"fits": spare >= 0, "spare_bytes": spare}
        if self.time is not None:
            row["time"] = {"not_known": self.time} if isinstance(self.time, str) else self.time.to_json()
        if self.training is not None:
            row["training"] = dict(zip(("tokens", "seconds"), self.training, strict=True))
        if self.limits is not None:
            row["smallest_world_size"] = self.limits.smallest_world_size
            row["largest_micro_batch"] = self.limits.largest_micro_batch
            row["undecided"] = self.limits.undecided
        return row

    @property
    def label(self) -> str:
        """Return the configuration in words."""
        axes = ", ".join(f"{key} {value}" for key, value in self.trial.axes.items())
        return axes or f"trial {self.trial.trial_id}"

    def cells(self) -> dict[str, str]:
        """Return the configuration's row of the table as column -> text."""
        cells = {key: str(value) for key, value in self.trial.axes.items()} or {"trial": self.trial.trial_id}
        estimate = self.estimate
        if estimate is None:
            return {**cells, "verdict": "not simulated"}
        state = sum(estimate.device.get(name, 0) for name in _STATE)
        sent, received = moved(estimate.traffic, self.trial)
        activations = estimate.device.get("activations", 0)
        cells |= {
            "device": format_bytes(estimate.peak_device_bytes),
            "host": format_bytes(estimate.peak_host_bytes),
            "state": format_bytes(state),
            "activations": format_bytes(activations),
            "other": format_bytes(estimate.peak_device_bytes - state - activations),
            "sent": format_bytes(sent),
            "received": format_bytes(received),
        }
        if self.time is not None:
            time = self.time
            cells["step"] = _span(time if isinstance(time, str) else (time.low_s, time.high_s))
        if self.training is not None:
            cells[f"{self.training[0]:.3g} tokens"] = _span(self.training[1])
        if self.memory is not None:
            cells["verdict"] = _verdict(estimate, self.memory)
        return cells | _limit_cells(self.limits)


def _span(seconds: tuple[float, float] | str) -> str:
    if isinstance(seconds, str):
        return f"not known: {seconds}"
    return " to ".join(f"{s / _DAY:,.3g} days" if s > _DAY else format_seconds(s) for s in seconds)


def _verdict(outcome: Estimate, memory: int) -> str:
    spare = memory - outcome.peak_device_bytes
    if spare < 0:
        return f"does not fit: {format_bytes(-spare)} too much"
    text = f"fits with {format_bytes(spare)} to spare"
    if outcome.build_device_bytes > memory:
        whole = format_bytes(outcome.build_device_bytes)
        text += f" (but building the model whole takes {whole}: use sharded_init)"
    return text


def _limit_cells(limits: Limits | None) -> dict[str, str]:
    if limits is None:
        return {}
    unknown = {name: f"undecided ({why})" for name, why in limits.undecided.items()}
    world, batch = limits.smallest_world_size, limits.largest_micro_batch
    return {
        "ranks": f">= {world}" if world else unknown.get("smallest_world_size", "none fits"),
        "micro-batch": f"<= {batch}" if batch else unknown.get("largest_micro_batch", "none fits"),
    }
