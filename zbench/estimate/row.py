"""The estimate of one configuration beside the memory that there is, and its entry in JSON documents."""

from dataclasses import dataclass, field, replace
from typing import Any

from zbench.estimate.result import Capacity, Estimate, SimulationOutcome
from zbench.estimate.roofline import StepTime, moved
from zbench.estimate.search import Limits
from zbench.spec.combinations import SHARDED_BUILDERS, advice
from zbench.spec.trial import TrialSpec, builds_sharded, has_tokens, ranks_of_a_node, samples_per_step
from zbench.units import format_bytes

Span = tuple[float, float]
"""The least and the most of a figure."""
_HOUR = 3600.0  # seconds
BY_RULES = {"deepspeed": "0.19.8", "largest_error": 0.087}
"""What engine: deepspeed is estimated by, and the most that the rules missed of a measured peak."""


@dataclass(frozen=True, slots=True)
class EstimateRow:
    """The estimates of one configuration, and the memory that there is. limits, time: if requested.

    training: (tokens, range of seconds to train them, or why that is unknown). peak_flops: of the rank's
    device, in the configuration's dtype. price: of one device for an hour.
    """

    trial: TrialSpec
    outcome: SimulationOutcome
    room: Capacity = field(default_factory=Capacity)
    limits: Limits | None = None
    time: StepTime | str | None = None
    training: tuple[int, Span | str] | None = None
    peak_flops: float | None = None
    price: float | None = None

    @property
    def estimate(self) -> Estimate | None:
        """Return the estimate; None if the configuration could not be simulated."""
        return self.outcome if isinstance(self.outcome, Estimate) else None

    @property
    def is_by_rules(self) -> bool:
        """Return whether the engine's memory is by rules, not that of its code."""
        return self.trial.engine.engine == "deepspeed"

    @property
    def spare(self) -> dict[str, int]:
        """Return place -> bytes that are left, of each place with a limit."""
        return {} if self.estimate is None else self.room.spare(self.estimate, ranks_of_a_node(self.trial))

    @property
    def fits(self) -> bool | None:
        """Return whether it fits; None without a limit or a simulation."""
        return all(rest >= 0 for rest in self.spare.values()) if self.spare else None

    @property
    def may_fit(self) -> bool | None:
        """Return whether it fits if the least is beside what is reserved; None without a limit."""
        if not self.spare:
            return None
        reserved = self.estimate and self.estimate.reserved
        least, most = reserved.beside if reserved else (0, 0)
        more = {"device": most - least, "host": 0}
        return all(rest + more[place] >= 0 for place, rest in self.spare.items())

    @property
    def host_bytes_of_a_node(self) -> int:
        """Return the peak of offloaded memory of one node; 0 if it could not be simulated."""
        return self.estimate.peak_host_bytes * ranks_of_a_node(self.trial) if self.estimate else 0

    @property
    def tokens_per_s(self) -> Span | None:
        """Return the tokens of all ranks in a second; None without a time, or if no token is known."""
        if not isinstance(self.time, StepTime) or not has_tokens(self.trial):
            return None
        tokens = samples_per_step(self.trial) * self.trial.workload.sequence_length
        return tokens / self.time.high_s, tokens / self.time.low_s

    @property
    def mfu(self) -> Span | None:
        """Return the model FLOPs utilization, as a fraction of the device's peak; None if unknown."""
        flops = None if self.estimate is None else self.estimate.flops
        if not isinstance(self.time, StepTime) or flops is None or self.peak_flops is None:
            return None
        seconds = flops / self.peak_flops
        return seconds / self.time.high_s, seconds / self.time.low_s

    @property
    def device_hours(self) -> Span | None:
        """Return the hours of all devices together that the training takes; None if unknown."""
        if self.training is None or isinstance(self.training[1], str):
            return None
        low, high = (seconds * self.trial.run.world_size / _HOUR for seconds in self.training[1])
        return low, high

    @property
    def cost(self) -> Span | None:
        """Return the money that the training takes; None without a price."""
        hours = self.device_hours
        return None if hours is None or self.price is None else (hours[0] * self.price, hours[1] * self.price)

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
        if self.is_by_rules:
            row["by_rules"] = BY_RULES
        names = {"device": "spare_bytes", "host": "spare_host_bytes"}
        row["estimate"] = estimate.to_json()
        row |= row["estimate"].pop("counts")
        row["sent_bytes"], row["received_bytes"] = moved(estimate.traffic, self.trial)
        row["host_bytes_of_a_node"] = self.host_bytes_of_a_node
        if self.spare:
            row |= {"fits": self.fits, "may_fit": self.may_fit}
            row |= {names[place]: rest for place, rest in self.spare.items()}
        if self.time is not None:
            row["time"] = {"not_known": self.time} if isinstance(self.time, str) else self.time.to_json()
        row |= _known(tokens_per_s=self.tokens_per_s, mfu=self.mfu)
        if self.training is not None:
            row["training"] = dict(zip(("tokens", "seconds"), self.training, strict=True))
            row["training"] |= _known(device_hours=self.device_hours, cost=self.cost)
        if self.limits is not None:
            row["smallest_world_size"] = self.limits.smallest_world_size
            row["largest_micro_batch"] = self.limits.largest_micro_batch
            row["longest_sequence"] = self.limits.longest_sequence
            row["undecided"] = self.limits.undecided
            row["bounded_by"] = self.limits.bounded_by
        return row

    @property
    def verdict(self) -> str | None:
        """Return whether it fits, and what else is to be known of it, in words; None without any."""
        if self.estimate is None:
            return "not simulated"
        remarks = [self._fit(self.estimate)] if self.spare else []
        if advice(self.trial.engine) is not None:
            remarks.append("offload_param without offload_optimizer saves nothing")
        if self.is_by_rules:
            remarks.append("by rules")
        return "; ".join(remarks) or None

    def _fit(self, estimate: Estimate) -> str:
        names = {"device": "", "host": " of a node's host memory"}
        lacking = [
            f"{format_bytes(-rest)}{names[place]} too much" for place, rest in self.spare.items() if rest < 0
        ]
        if lacking:
            step = replace(estimate, build_device_bytes=0, build_host_bytes=0)
            text = f"{'may fit' if self.may_fit else 'does not fit'}: {', '.join(lacking)}"
            if not self.room.fits(step, ranks_of_a_node(self.trial)):
                return text
            can_shard = self.trial.engine.engine in SHARDED_BUILDERS and not builds_sharded(self.trial)
            return f"{text} while it is built{'; set build: sharded' if can_shard else ''}"
        spare = [f"{format_bytes(rest)}{names[place]}" for place, rest in self.spare.items()]
        text = f"fits with {' and '.join(spare)} to spare"
        limit = self.room.device
        reserved = estimate.reserved
        if limit is not None and reserved and reserved.peak_bytes + reserved.beside[1] > limit:
            text += " if cached memory is released in every step; expandable segments may avoid it"
        return text


def _known(**figures: Span | None) -> dict[str, Span]:
    """Return the figures that are known."""
    return {name: figure for name, figure in figures.items() if figure is not None}
