"""`machine:` of a sweep file: rates, a card's name, or a file."""

import re
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import SpecError
from zbench.spec.cards import card_called
from zbench.spec.load import load_sweep, sweep_from_mapping
from zbench.spec.machine import MachineSpec, card_of, counted
from zbench.spec.sweep import SweepSpec, sweep_document


def loaded(machine: Any, *overrides: str) -> SweepSpec:
    return sweep_from_mapping({"name": "one", "machine": machine}, overrides, environ={})


def rates(machine: Any, *overrides: str) -> MachineSpec:
    spec = loaded(machine, *overrides).machine
    assert isinstance(spec, MachineSpec)
    return spec


def test_rates_are_numbers_as_people_write_them() -> None:
    spec = rates({"flops": "1.5T", "memory_bandwidth": "20GB", "operator_latency": "0.01ms"})
    values = spec.flops_of("bfloat16"), spec.memory_bandwidth, spec.operator_latency, spec.link_bandwidth
    assert values == (1.5e12, 20e9, 1e-5, None)
    assert rates("h100") == rates("H100")


def test_a_file_that_calibration_wrote_is_found_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "here.yaml").write_text("machine: {flops: 1e9, memory_bandwidth: 2e9}\n")
    (tmp_path / "sweep.yaml").write_text("machine: here.yaml\n")
    sweep = load_sweep(tmp_path / "sweep.yaml", environ={})
    assert isinstance(sweep.machine, MachineSpec)
    assert sweep.machine.memory_bandwidth == 2e9
    again = sweep_from_mapping(sweep_document(sweep), environ={})
    assert again.machine == sweep.machine
    (tmp_path / "here.yaml").write_text("machine: {flops: 1e9}\n")
    with pytest.raises(SpecError, match=r"here\.yaml: memory_bandwidth: this key is missing"):
        load_sweep(tmp_path / "sweep.yaml", environ={})


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ("A100", "called 'A100' (did you mean 'A100-80GB' or 'A100-40GB'?)"),
        ("MI300", "(did you mean 'MI300X'?)"),
        ("H101", "no GPU and no file is called 'H101' (did you mean 'H100'?)"),
        ({"flops": 1e12}, "machine.memory_bandwidth: this key is missing; add it"),
        ({"flops": "fast", "memory_bandwidth": 1e9}, "machine.flops: expected a rate"),
        (7, "machine: expected a mapping"),
    ],
)
def test_a_mistake_is_named_with_its_key(machine: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        loaded(machine)


@pytest.mark.parametrize(
    ("written", "name"),
    [("a100-40", "A100-40GB"), ("4090", "RTX-4090"), ("A6000", "RTX-A6000"), ("RTX 5090", "RTX-5090"),
     ("NVIDIA H100 80GB HBM3", "H100"), ("L40", "L40"), ("l4", "L4"), ("A40", "A40"), ("mi300x", "MI300X"),
     ("A1000", None), ("A100", None), ("H10", None)],
)  # fmt: skip
def test_a_card_is_known_by_its_whole_name(written: str, name: str | None) -> None:
    card = card_called(written)
    assert (card and card.name) == name
    if card is not None:
        assert card_of(rates(written)) == card


def test_cards_of_a_node_are_counted_before_the_name() -> None:
    assert [counted(text) for text in ("8xH100", "8 x a100-40", "RTX-4090")] == [
        (8, "H100"), (8, "a100-40"), (None, "RTX-4090"),
    ]  # fmt: skip
