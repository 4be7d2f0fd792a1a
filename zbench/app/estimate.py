"""Simulates every configuration of a sweep: memory, traffic and, on a known machine, the time of a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zbench.app.estimate_columns import estimate_table
from zbench.app.typed import Typed, limit_of, typed
from zbench.errors import ExitCode, UsageError
from zbench.estimate.client import Simulator
from zbench.estimate.result import Capacity
from zbench.estimate.roofline import ASSUMED, StepTime, step_time
from zbench.estimate.row import BY_RULES, EstimateRow
from zbench.estimate.search import limits
from zbench.report.columns import DataTable
from zbench.spec.bundled import shape_of
from zbench.spec.cards import Attained
from zbench.spec.combinations import advice
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep, sweep_file, sweep_from_mapping
from zbench.spec.machine import MachineSpec, card_of, described
from zbench.spec.peers import PEERS, peer_conflicts
from zbench.spec.shapes import PREFIX, configuration, layers_of, positions_of, similar
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import InvalidTrial, TrialSpec, has_tokens, samples_per_step

_ON_A_HOST = "ranks of a host read one another's memory; over sockets add a bucket for each call"
_NO_CARD = "CPU allocator, no card named; add --machine, such as --machine H100"
_SUFFIXES = (".yaml", ".yml", ".toml", ".json")
_ON_CARDS = "a GPU's default sizes, and NCCL with its receive buffers"
_OF_TORCH = "what the backend allocates for itself is not counted"
_RULES = (
    "engine deepspeed is by rules read from DeepSpeed {deepspeed}, which missed at most {largest_error:.0%}"
    " of a measured peak"
)
_OTHERS = ("deepspeed", "fsdp2", "ddp")
_SHOWN = (
    ("model", "workload", "model"),
    ("ranks", "run", "world_size"),
    ("nodes", "run", "nodes"),
    ("sequence", "workload", "sequence_length"),
    ("micro-batch", "workload", "micro_batch_size"),
    ("micro-batches a step", "engine", "gradient_accumulation_steps"),
    ("dtype", "engine", "dtype"),
    ("engine", "engine", "engine"),
)
"""What a header shows: its name, section and key."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What every configuration of a sweep needs, and the memory that they are to fit.

    reasons: section.key -> why a value that nobody asked for is as it is.
    """

    sweep: SweepSpec
    rows: Sequence[EstimateRow]
    invalid: Sequence[InvalidTrial]
    room: Capacity
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """USAGE if nothing could be simulated, REGRESSION if nothing fits a memory that has a limit."""
        if all(row.estimate is None for row in self.rows):
            return ExitCode.USAGE
        limited = [row.fits for row in self.rows if row.fits is not None]
        return ExitCode.PASS if any(limited) or not limited else ExitCode.REGRESSION

    @property
    def table(self) -> DataTable[EstimateRow]:
        """One row for each configuration."""
        return estimate_table(self.rows, self.sweep.name)

    @property
    def simulated(self) -> dict[str, str]:
        """What is simulated, in words; a value that nobody asked for is marked as a default."""
        shown = {}
        for name, section, key in _SHOWN:
            values = dict.fromkeys(str(getattr(getattr(row.trial, section), key)) for row in self.rows)
            is_default = key not in getattr(self.sweep, section).model_fields_set
            reason = self.reasons.get(f"{section}.{key}", "default" if is_default else "")
            shown[name] = ", ".join(values) + (f" ({reason})" if reason and len(values) == 1 else "")
        options = self.sweep.workload.options
        if options:
            texts = (f"{key} {value}" + self._whole(key, value) for key, value in options.items())
            shown["model"] += f" with {', '.join(texts)}"
        sizes = dict.fromkeys(f"{row.estimate.parameters:,}" for row in self.rows if row.estimate is not None)
        return {
            "model": shown.pop("model"),
            "parameters": ", ".join(sizes) or "not known",
            **shown,
            "device": self.device,
        }

    def _whole(self, key: str, value: object) -> str:
        """Return how many layers a model has that an option cuts, in words; nothing for other options."""
        config = configuration(self.sweep.workload.model or "", self.sweep.place or Path())
        layers, count = layers_of(config)
        is_cut = config and key == layers and (count is None or int(str(value)) < count)
        return f" (cut from {count or 'all'})" if is_cut else ""

    @property
    def device(self) -> str:
        """The card or the kind of device that is simulated, in words."""
        if any(row.trial.run.device == "cuda" for row in self.rows):
            card = card_of(self._machine)
            return card.name if card is not None else "a GPU"
        return "a CPU" if "device" in self.sweep.run.model_fields_set else "a CPU (default)"

    @property
    def headline(self) -> str | None:
        """The first line of an answer for which no card was named; None with a card, or a device that was."""
        on_cpu = all(row.trial.run.device != "cuda" for row in self.rows)
        is_asked = "device" in self.sweep.run.model_fields_set
        return _NO_CARD if on_cpu and self._machine is None and not is_asked else None

    @property
    def _machine(self) -> MachineSpec | None:
        return described(self.sweep.machine, self.sweep.place)

    @property
    def assumptions(self) -> dict[str, str]:
        """What the figures rest on: a subject, and a few words of it."""
        found: dict[str, str] = {}
        if any(row.trial.run.world_size > 1 for row in self.rows):
            found["collectives"] = self._of_collectives
        reserved = [row.estimate.reserved for row in self.rows if row.estimate and row.estimate.reserved]
        if reserved:
            segments = "expandable" if reserved[0].expandable_segments else "default"
            least = reserved[0].beside[0] / (1 << 30)
            most = max(each.beside[1] for each in reserved) / (1 << 30)
            found["reserved"] = f"by torch's allocator, {segments} segments (PYTORCH_CUDA_ALLOC_CONF)"
            found["beside it"] = f"{least:g} to {most:g} GiB of CUDA, libraries and communicators"
            found["fits"] = "with room for the most of them"
        if any(isinstance(row.time, StepTime) for row in self.rows):
            found |= self._of_time
        return found

    @property
    def _of_collectives(self) -> str:
        if all(row.trial.engine.engine in PEERS for row in self.rows):
            return _OF_TORCH
        return _ON_CARDS if all(row.trial.run.device == "cuda" for row in self.rows) else _ON_A_HOST

    @property
    def _of_time(self) -> dict[str, str]:
        found = dict(ASSUMED)
        machine = self._machine
        if machine is not None:
            dtypes = dict.fromkeys(row.trial.engine.dtype for row in self.rows)
            found |= {f"rates in {dtype}": _of_rates(machine, dtype) for dtype in dtypes}
        network = self.reasons.get("machine.network_bandwidth")
        return found | ({"network": network} if network else {})

    @property
    def advice(self) -> Sequence[str]:
        """What could be better about the engines, each once."""
        texts = [advice(row.trial.engine) for row in self.rows]
        if any(row.is_by_rules for row in self.rows):
            texts.append(_RULES.format(**BY_RULES))
        is_default = "engine" not in self.sweep.engine.model_fields_set
        if is_default and all(row.trial.engine.engine == "builtin" for row in self.rows):
            texts.append(_of_others(self.rows))
        return list(dict.fromkeys(filter(None, texts)))

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.sweep.name,
            "device_memory": self.room.device,
            "host_memory": self.room.host,
            "headline": self.headline,
            "simulated": self.simulated,
            "assumptions": self.assumptions,
            "trials": [row.to_json() for row in self.rows],
            "invalid": [trial.document() for trial in self.invalid],
        }


def forecast(
    source: Path | Mapping[str, Any] | None,
    settings: Sequence[str],
    *,
    room: Capacity | None = None,
    find_limits: bool = False,
    tokens: int | None = None,
    price: float | None = None,
    jobs: int | None = None,
    on_row: Callable[[EstimateRow, int, int], None] = lambda *_: None,
) -> Forecast:
    """Simulate a sweep file, a mapping like one, a model (`hf:Llama-3-8B`), or the default configuration.

    find_limits: also the smallest world size, the largest micro-batch and the longest sequence that fit the
    room. tokens: also the time to train for so many. price: of a device for an hour. jobs: configurations at
    once. on_row: called with each row as soon as it is known, before its limits are sought, with its number
    and how many there are.
    """
    asked, base_dir = _asked(source, settings)
    sweep = asked.sweep
    machine = described(sweep.machine, sweep.place)
    room = room or Capacity()
    room = replace(room, device=limit_of(machine, room.device))
    if find_limits and room == Capacity():
        raise UsageError(
            "--limits needs the memory of a device; add it, such as --device-memory 80Gi or --machine H100"
        )
    if tokens is not None and machine is None:
        raise UsageError("--tokens needs the rates of a machine; add --machine, such as --machine H100")
    if price is not None and tokens is None:
        raise UsageError("--price needs the number of tokens to train; add --tokens, such as --tokens 300B")
    expansion = expand(sweep, simulated=True)
    trials = expansion.trials
    if card_of(machine) is not None:
        trials = [_on_card(trial) for trial in trials]
    rows = list[EstimateRow]()
    with Simulator(base_dir, jobs=jobs) as simulator:
        for trial, outcome in zip(trials, simulator.each(trials), strict=True):
            row = _timed(EstimateRow(trial, outcome, room, price=price), machine, tokens)
            on_row(row, len(rows) + 1, len(trials))
            if find_limits and row.fits is not None:
                config = configuration(trial.workload.model or "", base_dir)
                positions = positions_of(config, trial.workload.options)
                row = replace(row, limits=limits(simulator, trial, room, positions))
            rows.append(row)
    return Forecast(sweep, rows, expansion.invalid, room, asked.reasons)


def _timed(row: EstimateRow, machine: MachineSpec | None, tokens: int | None) -> EstimateRow:
    """Return the row with the time of a step, and of the training on this number of tokens, if known."""
    if machine is not None and row.estimate is not None:
        peak = machine.flops_of(row.trial.engine.dtype)
        row = replace(row, time=step_time(row.estimate, row.trial, machine), peak_flops=peak)
    return row if tokens is None else replace(row, training=(tokens, _training(row, tokens)))


def _asked(source: Path | Mapping[str, Any] | None, settings: Sequence[str]) -> tuple[Typed, Path]:
    """Return the sweep, and the directory that its relative paths start from."""
    if isinstance(source, Path) and str(source).startswith(PREFIX) and not source.exists():
        return typed(str(source), settings), Path.cwd()
    if not isinstance(source, Path):
        asked = {"name": "estimate", **(source or {})}
        return Typed(sweep_from_mapping(asked, settings, simulated=True)), Path.cwd()
    path = sweep_file(source)
    if not path.exists() and path.suffix.lower() not in _SUFFIXES:
        if shape_of(str(source)) is not None:
            return typed(f"{PREFIX}{source}", settings), Path.cwd()
        if hint := similar(str(source)):
            raise UsageError(f"{source}: no such sweep file, shipped sweep or bundled model{hint}")
    return Typed(load_sweep(path, settings, simulated=True)), path.absolute().parent


def _of_rates(machine: MachineSpec, dtype: str) -> str:
    """Return the share of the peak that a step is taken to reach, and from which runs it is known."""
    share = machine.attained_of(dtype)
    card = card_of(machine)
    if card is None or machine.attained != card.rates()["attained"]:
        return f"{share:.0%} of the peak, as the machine says"
    source = card.attained.source if dtype in card.attained.shares else Attained().source
    return f"{share:.0%} of the data sheet's peak: {source}"


def _of_others(rows: Sequence[EstimateRow]) -> str:
    """Return how to estimate another engine's memory: one that has every key that some row sets."""
    engines = [row.trial.engine.model_copy(update={"engine": name}) for name in _OTHERS for row in rows]
    able = {engine.engine for engine in engines if not any(peer_conflicts(engine, simulated=True))}
    names = [name for name in _OTHERS if name in able]
    own = "the memory is that of zbench's own engine"
    return f"{own}; for another's add --set engine={' or '.join(names)}" if names else own


def _on_card(trial: TrialSpec) -> TrialSpec:
    """Return the trial on a GPU, unless it asks for a device."""
    if trial.run.device != "auto":
        return trial
    return trial.model_copy(update={"run": trial.run.model_copy(update={"device": "cuda"})})


def _training(row: EstimateRow, tokens: int) -> tuple[float, float] | str:
    """Return the least and the most seconds for this number of tokens, or why they are not known."""
    if not has_tokens(row.trial):
        return "the workload does not say what a token is"
    if not isinstance(row.time, StepTime):
        return row.time or "not simulated"
    steps = tokens / (samples_per_step(row.trial) * row.trial.workload.sequence_length)
    return steps * row.time.low_s, steps * row.time.high_s
