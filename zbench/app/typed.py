"""The sweep of a model that is typed on the command line, and the cards beside it: `hf:Llama-3-8B`, `8xH100`.

A person who types the name of a model has no sweep file. A value that the person did not type is the value
that training of such a model usually has. Each has a reason, which the answer shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.spec.load import sweep_from_mapping
from zbench.spec.machine import MachineSpec, card_of, counted, described
from zbench.spec.peers import peer_conflicts
from zbench.spec.shapes import configuration, dtype_of, mistake, positions_of
from zbench.spec.sweep import SweepSpec
from zbench.units import parse_count

TOKENS = 4096
"""Tokens of a sequence, if the model has as many positions."""
CARDS_OF_A_NODE = 8
_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Typed:
    """The sweep, and section.key -> why a value that nobody typed is as it is."""

    sweep: SweepSpec
    reasons: Mapping[str, str] = field(default_factory=dict)


def typed(model: str, settings: Sequence[str]) -> Typed:
    """Return the sweep of `hf:NAME` with these settings: the model's dtype, all stages, and nodes of 8."""
    problem = mistake(model, Path.cwd())
    if problem is not None:
        raise UsageError(problem)
    document: dict[str, Any] = {"name": "estimate", "workload": {"model": model}, "run": {}, "engine": {}}
    document["axes"] = {"zero_stage": list(_STAGES)}
    asked = sweep_from_mapping(document, settings, simulated=True)
    written = configuration(asked.workload.model, Path.cwd())
    reasons: dict[str, str] = {}

    def choose(section: str, key: str, value: object, reason: str) -> None:
        if key not in getattr(asked, section).model_fields_set:
            document[section][key] = value
            reasons[f"{section}.{key}"] = reason

    longest = positions_of(written, asked.workload.options)
    tokens, of_longest = TOKENS, f"; its maximum is {longest:,}" if longest else ""
    if longest and longest < TOKENS:
        tokens, of_longest = longest, ""
    choose("workload", "sequence_length", tokens, f"assumed{of_longest}" if of_longest else "its maximum")
    choose("workload", "micro_batch_size", 1, "assumed")
    dtype = dtype_of(written)
    if dtype is not None and not _is_refused(asked, "dtype", dtype):
        choose("engine", "dtype", dtype, "the model's own")
    stages = [stage for stage in _STAGES if not _is_refused(asked, "zero_stage", stage)]
    document["axes"] = {"zero_stage": stages or list(_STAGES)}
    choose("run", "world_size", CARDS_OF_A_NODE, "assumed")
    ranks = document["run"].get("world_size", asked.run.world_size)
    nodes = nodes_of(ranks)
    if nodes > 1:
        choose("run", "nodes", nodes, f"{ranks // nodes} cards each, assumed")
    sweep = sweep_from_mapping(document, settings, simulated=True)
    return Typed(*_with_network(sweep, reasons))


def nodes_of(ranks: int) -> int:
    """Return the least number of equal nodes that have at most CARDS_OF_A_NODE ranks."""
    most = next(each for each in range(min(ranks, CARDS_OF_A_NODE), 0, -1) if ranks % each == 0)
    return ranks // most


def _is_refused(sweep: SweepSpec, key: str, value: object) -> bool:
    """Return whether the sweep's engine does not have this value of a key."""
    changed = sweep.engine.model_copy(update={key: value})
    return any(path == f"engine.{key}" for path, _ in peer_conflicts(changed, simulated=True))


def _with_network(sweep: SweepSpec, reasons: dict[str, str]) -> tuple[SweepSpec, dict[str, str]]:
    """Return the sweep on nodes with the usual network of its card, unless it names the rate."""
    machine = described(sweep.machine, sweep.place)
    card = card_of(machine)
    if machine is None or card is None or sweep.run.nodes == 1 or machine.network_bandwidth is not None:
        return sweep, reasons
    joined = machine.model_copy(update={"network_bandwidth": card.network})
    text = f"{card.network / 1e9:g} GB/s leave a node; else --set machine.network_bandwidth=RATE"
    return sweep.model_copy(update={"machine": joined}), {**reasons, "machine.network_bandwidth": text}


def cards_typed(machine: str | None, ranks: int | None) -> list[tuple[str, str, object]]:
    """Return the settings of `--machine 8xH100` and `--world-size`: key, flag, value or None."""
    count, name = (None, None) if machine is None else counted(machine)
    if count == 0:
        raise UsageError(f"--machine {machine}: expected at least 1 card, such as 8x{name}")
    asked = ranks or count
    flags: list[tuple[str, str, object]] = [
        ("run.world_size", "--world-size", asked), ("machine", "--machine", name),
    ]  # fmt: skip
    if count and asked and asked > count:
        flags.append(("run.nodes", f"--machine {machine}, so nodes", -(-asked // count)))
    return flags


def limit_of(machine: MachineSpec | None, given: int | None) -> int | None:
    """Return the bytes of device memory that a configuration has to fit: as given, or the machine's."""
    return machine.memory if given is None and machine is not None else given


def token_count(name: str, given: int | str) -> int:
    """Return a number of tokens, such as `300B`. UsageError with the option's `name` for other values."""
    try:
        count = parse_count(given)
    except ValueError as error:
        raise UsageError(f"{name}: {error}; write k, M, B or T, such as 15T for 15 trillion") from None
    if count < 1:
        raise UsageError(f"{name}: expected at least 1 token, such as 300B, got {given!r}")
    return count
