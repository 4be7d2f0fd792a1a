"""The list of GPUs that are known by name: rates of the data sheet, memory, links, and names.

Rates are dense and of one card, in FLOP/s and bytes per second, in one direction of a link. `memory` is
the least that torch reports for the card, less than the name says, because the driver keeps a part.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zbench.errors import closest

_GIB = 1 << 30
_MAKERS = re.compile(r"\b(?:nvidia|amd|instinct|geforce|tesla)\b", re.I)
_LEAST_SHARED = 2  # letters that a name and a text share at least, for a suggestion
ATTAINED = 0.55
"""Share of the data sheet's peak that a step is assumed to reach, if no published run shows another."""
LINK_ATTAINED = 0.75
"""The same of links. NCCL reaches 0.75 to 0.95 of them with large messages (NVIDIA/nccl-tests issue 290)."""
LAUNCH_LATENCY = 10e-6
"""Seconds of the host for each operator: 5 to 25 us of Python and dispatch, whichever card."""
LINK_LATENCY = 16e-6
"""Seconds of a small all-reduce of 8 cards by NVLink: 12.5 to 16.7 us (deepseek-ai/DeepEP issue 303)."""


@dataclass(frozen=True, slots=True)
class Attained:
    """Shares of the peak that published runs reached: dtype -> share, and which runs."""

    shares: Mapping[str, float] = field(default_factory=dict)
    source: str = "assumed, no published run of this card"


_HALF = ("bfloat16", "float16")
_UNKNOWN = Attained()
_A100 = Attained(dict.fromkeys(_HALF, 0.73), "median of 10 runs of LLM-Foundry on 8 A100")
_H100 = Attained(dict.fromkeys(_HALF, 0.56), "median of 9 runs of LLM-Foundry on 8 H100")
_V100 = Attained({"float32": 0.76, "float16": 0.33}, "BERT-large of ModelCenter on a V100")
"""LLM-Foundry: scripts/train/benchmarking/README.md at 8c8dd48f7. ModelCenter:
docs/source/notes/benchmark.md, with sequences of 512 tokens. results/benchmarks/published.json has both."""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU.

    half: of bfloat16 and float16 (float16 alone if `bfloat16` is False). single: of float32. tf32: of float32
    with TF32. link: between the cards of a node. host: between card and host. gib: memory. network: what
    leaves a usual node of such cards, from all of them. host_memory: bytes per second of the host's memory.
    devices: the names that torch reports, without the maker's. attained: of the peak, by published runs.
    """

    name: str
    half: float
    single: float
    tf32: float
    memory_bandwidth: float
    link: float
    host: float
    gib: float
    network: float
    devices: tuple[str, ...]
    bfloat16: bool = True
    host_memory: float | None = None
    attained: Attained = _UNKNOWN

    @property
    def memory(self) -> int:
        """Bytes of the card that programs can use."""
        return int(self.gib * _GIB)

    def peak(self, dtype: str) -> float | None:
        """Return the FLOP/s of dense matrix products, float32 with TF32; None without such products."""
        if dtype == "float32":
            return self.tf32
        return self.half if dtype == "float16" or self.bfloat16 else None

    def rates(self) -> dict[str, Any]:
        """Return the rates as keys of `machine:` in a sweep file."""
        flops = {"float16": self.half, "float32": self.single}
        flops |= {"bfloat16": self.half} if self.bfloat16 else {}
        rates = {
            "flops": flops,
            "memory_bandwidth": self.memory_bandwidth,
            "memory": self.memory,
            "link_bandwidth": self.link,
            "host_link": self.host,
            "launch_latency": LAUNCH_LATENCY,
            "link_latency": LINK_LATENCY,
            "attained": dict.fromkeys(flops, ATTAINED) | dict(self.attained.shares),
            "link_attained": LINK_ATTAINED,
        }
        return rates | ({"host_memory_bandwidth": self.host_memory} if self.host_memory else {})


CARDS = {
    card.name: card
    for card in (
        Card("B200", 2250e12, 75e12, 1125e12, 7.7e12, 900e9, 64e9, 178.3, 400e9, ("B200",)),
        Card("GH200", 989e12, 67e12, 494e12, 4.0e12, 450e9, 450e9, 94.5, 100e9,
             ("GH200 480GB", "GH200 120GB"), host_memory=384e9, attained=_H100),
        Card("H200", 989e12, 67e12, 494e12, 4.8e12, 450e9, 64e9, 139.7, 400e9, ("H200",), attained=_H100),
        Card("H100", 989e12, 67e12, 494e12, 3.35e12, 450e9, 64e9, 79.1, 400e9,
             ("H100 80GB HBM3",), attained=_H100),
        Card("H100-NVL", 835e12, 60e12, 417e12, 3.9e12, 300e9, 64e9, 93.1, 50e9,
             ("H100 NVL",), attained=_H100),
        Card("H100-PCIe", 756e12, 51e12, 378e12, 2.0e12, 300e9, 64e9, 79.1, 50e9,
             ("H100 PCIe",), attained=_H100),
        Card("MI300X", 1307e12, 163.4e12, 653.7e12, 5.3e12, 448e9, 64e9, 191.9, 400e9, ("MI300X",)),
        Card("A100-80GB", 312e12, 19.5e12, 156e12, 2.039e12, 300e9, 32e9, 79.1, 200e9,
             ("A100-SXM4-80GB", "A100 80GB PCIe"), attained=_A100),
        Card("A100-40GB", 312e12, 19.5e12, 156e12, 1.555e12, 300e9, 32e9, 39.4, 200e9,
             ("A100-SXM4-40GB", "A100-PCIE-40GB"), attained=_A100),
        Card("L40S", 362e12, 91.6e12, 183e12, 864e9, 32e9, 32e9, 44.3, 50e9, ("L40S",)),
        Card("L40", 181e12, 90.5e12, 90.5e12, 864e9, 32e9, 32e9, 44.3, 50e9, ("L40",)),
        Card("L4", 121e12, 30.3e12, 60e12, 300e9, 32e9, 32e9, 21.9, 12.5e9, ("L4",)),
        Card("A40", 149.7e12, 37.4e12, 74.8e12, 696e9, 32e9, 32e9, 44.3, 25e9, ("A40",)),
        Card("A10", 125e12, 31.2e12, 62.5e12, 600e9, 32e9, 32e9, 21.9, 12.5e9, ("A10",)),
        Card("V100-32GB", 125e12, 15.7e12, 15.7e12, 900e9, 150e9, 16e9, 31.7, 50e9,
             ("V100-SXM2-32GB", "V100-SXM3-32GB"), bfloat16=False, attained=_V100),
        Card("V100-16GB", 125e12, 15.7e12, 15.7e12, 900e9, 150e9, 16e9, 15.7, 12.5e9,
             ("V100-SXM2-16GB",), bfloat16=False, attained=_V100),
        Card("RTX-5090", 209.5e12, 104.8e12, 104.8e12, 1.792e12, 64e9, 64e9, 31.3, 12.5e9, ("RTX 5090",)),
        Card("RTX-4090", 165.2e12, 82.6e12, 82.6e12, 1.008e12, 32e9, 32e9, 23.6, 12.5e9, ("RTX 4090",)),
        Card("RTX-3090", 71e12, 35.6e12, 35.6e12, 936e9, 32e9, 32e9, 23.6, 12.5e9, ("RTX 3090",)),
        Card("RTX-A6000", 154.8e12, 38.7e12, 77.4e12, 768e9, 32e9, 32e9, 47.4, 12.5e9, ("RTX A6000",)),
        Card("T4", 65e12, 8.1e12, 8.1e12, 300e9, 16e9, 16e9, 14.5, 12.5e9, ("T4",), bfloat16=False),
    )
}  # fmt: skip
"""Name -> card. Sources: the makers' data sheets."""


def _normal(text: str) -> str:
    """Return the letters and digits of a name in lower case, without the maker's name."""
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text).lower())


def _names(card: Card) -> set[str]:
    """Return every normalized name of a card: its own, torch's, and without `rtx` and `gb`."""
    names = {_normal(card.name), *map(_normal, card.devices)}
    names |= {name.removeprefix("rtx") for name in names}
    return names | {name.removesuffix("gb") for name in names}


_BY_NAME = {name: card for card in CARDS.values() for name in _names(card)}


def card_called(text: str) -> Card | None:
    """Return the card with this name, as people or torch write it; None for a part of a name."""
    return _BY_NAME.get(_normal(text))


def similar(text: str) -> str:
    """Return ` (did you mean 'A100-80GB' or 'A100-40GB'?)`, or an empty text if no card's name is similar."""
    name = _normal(text)
    cards = [c.name for c in CARDS.values() if any(n.startswith(name) for n in _names(c))]
    if len(name) < _LEAST_SHARED or not cards:
        match = closest(name, _BY_NAME)
        cards = [_BY_NAME[match].name] if match else []
    return f" (did you mean {' or '.join(map(repr, cards))}?)" if cards else ""
