"""Rates of well-known cards, from their makers' data sheets: peaks without sparsity, in one direction.

`float32` is the rate without TF32, which is PyTorch's default. `link_bandwidth` is NVLink's between cards of
one host where the card has it, else PCIe's; for ranks of several hosts set one rank's share of the network.
`host_memory_bandwidth` belongs to no card: whoever offloads sets it.
"""

from typing import Any

ATTAINED = 0.55
"""The share of a data sheet's peak that is assumed; well-tuned training reaches 0.4 to 0.8 of it."""


def _card(
    half: float, single: float, memory: float, link: float, host: float, *, bfloat16: bool = True
) -> dict[str, Any]:
    flops = {"float16": half, "float32": single} | ({"bfloat16": half} if bfloat16 else {})
    return {
        "flops": flops,
        "memory_bandwidth": memory,
        "link_bandwidth": link,
        "host_link": host,
        "attained": ATTAINED,
    }


CARDS: dict[str, dict[str, Any]] = {
    "H200": _card(989e12, 67e12, 4.8e12, 450e9, 64e9),
    "H100": _card(989e12, 67e12, 3.35e12, 450e9, 64e9),
    "H100-PCIe": _card(756e12, 51e12, 2.0e12, 300e9, 64e9),
    "A100-80GB": _card(312e12, 19.5e12, 2.039e12, 300e9, 32e9),
    "A100-40GB": _card(312e12, 19.5e12, 1.555e12, 300e9, 32e9),
    "L40S": _card(362e12, 91.6e12, 864e9, 32e9, 32e9),
    "L4": _card(121e12, 30.3e12, 300e9, 32e9, 32e9),
    "A10": _card(125e12, 31.2e12, 600e9, 32e9, 32e9),
    "V100-32GB": _card(125e12, 15.7e12, 900e9, 150e9, 16e9, bfloat16=False),
    "T4": _card(65e12, 8.1e12, 300e9, 16e9, 16e9, bfloat16=False),
}
