"""The grid of engines: each cell once, intervals over rounds, what was measured is not measured again."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from zbench.bench import grid_engines
from zbench.bench.grid_engines import CELLS, MATCHES, SETS, Cell, Ratio, contenders, table
from zbench.bench.turns import Figures

HERE = dict.fromkeys(("alone", "ddp", "zero_redundancy", "fsdp2", "zbench"), "python")


def test_every_cell_and_every_match_is_there_once() -> None:
    assert len(set(CELLS)) == len(CELLS) == 4 * 2 * 2 * 2
    assert [match for matches in SETS for match in matches] == list(MATCHES)


def test_a_ratio_and_its_interval_are_over_rounds_of_two_steps() -> None:
    found = Ratio.of([1.0, 3.0, 2.0, 2.0], [4.0, 4.0, 4.0, 4.0])
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    apart = Ratio.of([1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert apart.value == pytest.approx(math.sqrt(2))
    assert apart.low * apart.high == pytest.approx(2.0), "symmetric in the logarithm"
    assert apart.high / apart.value == pytest.approx(math.exp(math.log(2) / 2 * 12.7062), rel=1e-4)
    assert Ratio.of([1.0, 1.0], [2.0, 2.0]).high == math.inf, "one round shows no spread"
    single = Ratio.of([1.0, 2.0], [1.0, 1.0], Cell(6, 512, 8192, "float32", 2, 4).turn)
    assert (single.value, single.high) == pytest.approx((apart.value, apart.high)), (
        "one step of four backwards"
    )


@pytest.mark.parametrize(
    ("dtype", "rivals"), [("float32", ["ddp", "zero_redundancy"]), ("bfloat16", ["ddp"])]
)
def test_contenders_are_those_that_there_are(dtype: str, rivals: list[str]) -> None:
    cell = Cell(6, 512, 8192, dtype, 2, 1)
    assert contenders(cell, SETS[0], HERE) == ["zbench-0", *rivals, "alone", "zbench-1"]
    assert contenders(cell, SETS[2], HERE) == ["zbench-2-offload", "zbench-2-offload-speculative"]
    assert "alone" not in contenders(Cell(6, 512, 8192, dtype, 4, 1), SETS[0], HERE), "they share cores"


def test_matches_of_a_wide_cell_are_measured_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, ...]] = []

    def measured(_: Cell, modes: Sequence[str], __: Mapping[str, str], rounds: int) -> dict[str, Figures]:
        asked.append(tuple(modes))
        return {mode: Figures([0.1] * 2 * rounds, 1, 1) for mode in modes}

    wide = Cell(2, 1024, 16384, "float32", 4, 1)
    assert wide in CELLS
    monkeypatch.setattr(grid_engines, "CELLS", (wide,))
    monkeypatch.setattr(grid_engines, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["grid", "--out", str(tmp_path / "grid")])
    grid_engines.main()
    grid_engines.main()
    assert asked == [
        ("zbench-0", "ddp", "zero_redundancy"), ("zbench-1", "ddp", "zero_redundancy"), ("zbench-3", "fsdp2"),
    ]  # fmt: skip


def test_the_table_names_the_best_peer_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Cell, tuple[str, ...]]] = []

    def measured(cell: Cell, modes: Sequence[str], _: Mapping[str, str], rounds: int) -> dict[str, Figures]:
        asked.append((cell, tuple(modes)))
        steps = {"ddp": 0.2, "alone": 0.08}
        return {m: Figures([steps.get(m, 0.1)] * 2 * rounds, 2 << 20, 3 << 20) for m in modes}

    monkeypatch.setattr(grid_engines, "measure", measured)
    arguments = ["grid", "--rounds", "3", "--cells", "2", "--out", str(tmp_path / "grid")]
    monkeypatch.setattr(sys, "argv", arguments)
    grid_engines.main()
    grid_engines.main()
    assert len(asked) == len(set(asked)) == 6, "what was measured is not measured again"
    document = json.loads((tmp_path / "grid.json").read_text())
    said = table(document["sets"])
    assert f"6 of {len(CELLS) * len(MATCHES)} matches measured" in said
    assert "| zbench-0 | 2 | 1.00 | 1.00 | 1.00 | 1.00 | 1.25 | 1.10 |" in said
    cell = "| 6 x 512, float32, 2 ranks, 1 backwards | zbench-1 | zero_redundancy |"
    assert f"{cell} 1.00 (1.00 to 1.00) | 2 / 2 | 3 / 3 |" in said
    assert "deepspeed" not in said, "there is no interpreter for it"
