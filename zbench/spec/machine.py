"""The rates of a machine for one rank, from which the time of a step is estimated.

`machine:` of a sweep file is a mapping of rates, the name of a GPU, or a YAML file with such a mapping
(`zbench doctor --calibrate` prints one).
"""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError

from zbench.errors import SpecError, nearest
from zbench.spec.base import Rate, Seconds, Share, SpecModel
from zbench.spec.document import read_named
from zbench.spec.problems import Problem, ProblemsError, problems_of

_KEY = ("machine",)


def _card(
    half: float, single: float, memory: float, link: float, host: float, *, bfloat16: bool = True
) -> dict[str, Any]:
    flops = {"float16": half, "float32": single} | ({"bfloat16": half} if bfloat16 else {})
    rates = {"flops": flops, "memory_bandwidth": memory, "link_bandwidth": link, "host_link": host}
    return rates | {"attained": 0.55}  # share of the data sheet's peak; tuned training reaches 0.4 to 0.8


CARDS: dict[str, dict[str, Any]] = {
    "B200": _card(2250e12, 75e12, 7.7e12, 900e9, 64e9),
    "GH200": _card(989e12, 67e12, 4.0e12, 450e9, 450e9) | {"host_memory_bandwidth": 384e9},
    "H200": _card(989e12, 67e12, 4.8e12, 450e9, 64e9),
    "H100": _card(989e12, 67e12, 3.35e12, 450e9, 64e9),
    "H100-PCIe": _card(756e12, 51e12, 2.0e12, 300e9, 64e9),
    "A100-80GB": _card(312e12, 19.5e12, 2.039e12, 300e9, 32e9),
    "A100-40GB": _card(312e12, 19.5e12, 1.555e12, 300e9, 32e9),
    "L40S": _card(362e12, 91.6e12, 864e9, 32e9, 32e9),
    "L4": _card(121e12, 30.3e12, 300e9, 32e9, 32e9),
    "A10": _card(125e12, 31.2e12, 600e9, 32e9, 32e9),
    "V100-32GB": _card(125e12, 15.7e12, 900e9, 150e9, 16e9, bfloat16=False),
    "RTX-5090": _card(209.5e12, 104.8e12, 1.792e12, 64e9, 64e9),
    "RTX-4090": _card(165.2e12, 82.6e12, 1.008e12, 32e9, 32e9),
    "RTX-3090": _card(71e12, 35.6e12, 936e9, 32e9, 32e9),
    "T4": _card(65e12, 8.1e12, 300e9, 16e9, 16e9, bfloat16=False),
}
_RATES = {name.lower(): rates for name, rates in CARDS.items()}


class MachineSpec(SpecModel):
    """Rates of one rank's device and links. A missing rate is unknown."""

    flops: Rate | dict[str, Rate] = Field(
        description="FLOP/s of matrix products: a number, or dtype -> number, such as {bfloat16: 989e12}."
    )
    memory_bandwidth: Rate = Field(description="Bytes per second of the device's memory.")
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
    link_latency: Seconds | None = Field(None, description="Overhead in seconds of each collective.")
    attained: Share = Field(
        1.0, gt=0, le=1, description="Fraction of these rates that a step reaches; data sheets give peaks."
    )

    def flops_of(self, dtype: str) -> float | None:
        """Return the FLOP/s of matrix products in `dtype`; None if unknown."""
        return self.flops.get(dtype) if isinstance(self.flops, dict) else self.flops


def _form(value: object) -> str:
    return "<name>" if isinstance(value, str) else "<rates>"


Machine = Annotated[
    Annotated[MachineSpec, Tag("<rates>")] | Annotated[str, Tag("<name>")], Discriminator(_form)
]
"""The type of `machine:` in a sweep file."""


def card_name(machine: MachineSpec | None) -> str | None:
    """Return the name of the known GPU that has these rates of computing and of memory."""
    cards = {name: MachineSpec.model_validate(rates) for name, rates in CARDS.items()}
    peaks = attrgetter("flops", "memory_bandwidth")  # the other rates depend on what the card is in
    return next((name for name, card in cards.items() if machine and peaks(card) == peaks(machine)), None)


def opened(written: object) -> object:
    """Return the rates of a GPU that is named, so that single ones can be set; anything else as it is."""
    rates = _RATES.get(str(written).lower())
    return written if rates is None else MachineSpec.model_validate(rates).model_dump(exclude_none=True)


def described(written: MachineSpec | str | None, place: Path | None) -> MachineSpec | None:
    """Return the rates of `machine:`. ProblemsError at that key if it names no GPU and no valid file.

    place: base of relative paths; None: the working directory.
    """
    if not isinstance(written, str):
        return written
    if written.lower() in _RATES:
        return MachineSpec.model_validate(_RATES[written.lower()])
    file = (place or Path()) / Path(written).expanduser()
    if not file.is_file():
        message = f"no GPU and no file is called {written!r}{nearest(written, _RATES)}; known GPUs:"
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
