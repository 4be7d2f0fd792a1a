"""The rates of a machine for one rank, from which the time of a step is estimated.

`machine:` of a sweep file is a mapping of rates, the name of a GPU, or a YAML file with such a mapping
(`zbench doctor --calibrate` prints one).
"""

import re
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError

from zbench.errors import SpecError
from zbench.spec.base import ByteCount, Rate, Seconds, Share, SpecModel
from zbench.spec.cards import CARDS, Card, card_called, similar
from zbench.spec.document import read_named
from zbench.spec.problems import Problem, ProblemsError, problems_of

_KEY = ("machine",)


_COUNTED = re.compile(r"(\d+)\s*[xX*]\s*(\S.*)")


def counted(written: str) -> tuple[int | None, str]:
    """Return (cards of a node, name) of `8xH100`; (None, the text) for a name without a number."""
    match = _COUNTED.fullmatch(written.strip())
    return (int(match[1]), match[2]) if match else (None, written)


_Fraction = Annotated[Share, Field(gt=0, le=1)]


class MachineSpec(SpecModel):
    """Rates of one rank's device and links. A missing rate is unknown."""

    flops: Rate | dict[str, Rate] = Field(
        description="FLOP/s of matrix products: a number, or dtype -> number, such as {bfloat16: 989e12}."
    )
    memory_bandwidth: Rate = Field(description="Bytes per second of the device's memory.")
    memory: ByteCount | None = Field(None, description="Bytes of the device that programs can use.")
    link_bandwidth: Rate | None = Field(
        None, description="Bytes per second that a rank exchanges with others of its node, in one direction."
    )
    network_bandwidth: Rate | None = Field(
        None, description="Bytes per second that leave a node, from all its ranks."
    )
    host_link: Rate | None = Field(None, description="Bytes per second between device and host.")
    host_memory_bandwidth: Rate | None = Field(
        None, description="Bytes per second of the host's memory, one rank's share."
    )
    operator_latency: Seconds | None = Field(
        None, description="Overhead in seconds of each operator, Python included."
    )
    launch_latency: Seconds | None = Field(
        None, description="Time of the host to launch an operator of a GPU, which runs behind it."
    )
    link_latency: Seconds | None = Field(None, description="Overhead in seconds of each collective.")
    attained: _Fraction | dict[str, _Fraction] = Field(
        1.0,
        description="Fraction of these rates that a step reaches, a number or dtype -> number.",
    )
    link_attained: _Fraction | None = Field(
        None, description="The same of links and of the network. Missing: as attained."
    )

    def attained_of(self, dtype: str) -> float:
        """Return the fraction of the rates that a step in `dtype` reaches; 1 if it is unknown."""
        return self.attained.get(dtype, 1.0) if isinstance(self.attained, dict) else self.attained

    def flops_of(self, dtype: str) -> float | None:
        """Return the FLOP/s of matrix products in `dtype`; None if unknown."""
        return self.flops.get(dtype) if isinstance(self.flops, dict) else self.flops


def _form(value: object) -> str:
    return "<name>" if isinstance(value, str) else "<rates>"


Machine = Annotated[
    Annotated[MachineSpec, Tag("<rates>")] | Annotated[str, Tag("<name>")], Discriminator(_form)
]
"""The type of `machine:` in a sweep file."""


def card_of(machine: MachineSpec | None) -> Card | None:
    """Return the known GPU that has these rates of computing and of memory."""
    peaks = attrgetter("flops", "memory_bandwidth")  # the other rates depend on what the card is in
    return next((card for card in CARDS.values() if machine and peaks(_spec(card)) == peaks(machine)), None)


def _spec(card: Card) -> MachineSpec:
    return MachineSpec.model_validate(card.rates())


def opened(written: object) -> object:
    """Return the rates of a GPU that is named, so that single ones can be set; anything else as it is."""
    card = card_called(str(written))
    return written if card is None else _spec(card).model_dump(exclude_none=True)


def described(written: MachineSpec | str | None, place: Path | None) -> MachineSpec | None:
    """Return the rates of `machine:`. ProblemsError at that key if it names no GPU and no valid file.

    place: base of relative paths; None: the working directory.
    """
    if not isinstance(written, str):
        return written
    card = card_called(written)
    if card is not None:
        return _spec(card)
    file = (place or Path()) / Path(written).expanduser()
    if not file.is_file():
        message = f"no GPU and no file is called {written!r}{similar(written)}; known GPUs:"
        remedy = "For another machine give its rates, or a file of the output of `zbench doctor --calibrate`"
        raise ProblemsError.at(_KEY, f"{message} {', '.join(CARDS)}. {remedy}")
    try:
        data: Any = read_named(file, {*MachineSpec.model_fields, "machine"}).data
    except SpecError as error:
        raise ProblemsError.at(_KEY, f"{written}: {error.message}") from None
    if not isinstance(data, Mapping):
        raise ProblemsError.at(_KEY, f"{written} holds no rates of a machine; name another file")
    rates = data.get("machine", data)
    if not isinstance(rates, Mapping) or rates.keys() - MachineSpec.model_fields.keys():
        keys = ", ".join(MachineSpec.model_fields)
        raise ProblemsError.at(_KEY, f"{written} holds other keys than {keys}; name another file")
    try:
        return MachineSpec.model_validate(rates)
    except ValidationError as error:
        problems = problems_of(error, rates, MachineSpec)
        raise ProblemsError(
            Problem(_KEY, f"{written}: {'.'.join(map(str, p.path))}: {p.message}") for p in problems
        ) from None
