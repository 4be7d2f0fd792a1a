"""The engine beside its peers: cells, intervals over rounds; what was measured is not measured again."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tools.benchmarks import engines
from tools.benchmarks.engines import PLANS, Cell, Ratio, contenders, table
from tools.benchmarks.turns import ROOT, Figures
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep

HERE = dict.fromkeys(("alone", "ddp", "zero_redundancy", "fsdp2", "zbench"), "python")
GRID = PLANS["grid"]


def test_a_ratio_and_its_interval_are_over_rounds_of_two_steps() -> None:
    same = Ratio.of([1.0, 3.0, 2.0, 2.0], [4.0, 4.0, 4.0, 4.0])
    assert (same.value, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5))
    apart = Ratio.of([1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert apart.value == pytest.approx(math.sqrt(2))
    assert apart.low * apart.high == pytest.approx(2.0), "symmetric in the logarithm"
    assert apart.high / apart.value == pytest.approx(math.exp(math.log(2) / 2 * 12.7062), rel=1e-4)
    single = Ratio.of([1.0, 2.0], [1.0, 1.0], Cell(6, 512, backwards=4).turn)
    assert (single.value, single.high) == pytest.approx((apart.value, apart.high))


def test_contenders_are_those_that_there_are() -> None:
    torchs, deepspeed, alone = (GRID.matches[index] for index in (0, 2, 4))
    assert contenders(Cell(6, 512), torchs, HERE) == ["zbench-0", "ddp", "zero_redundancy"]
    assert contenders(Cell(6, 512, dtype="bfloat16"), torchs, HERE) == ["zbench-0", "ddp"]
    assert contenders(Cell(6, 512), deepspeed, HERE) == ["zbench-2"], "there is no interpreter for it"
    assert contenders(Cell(6, 512), alone, HERE) == ["zbench-0", "alone"]
    assert contenders(Cell(6, 512, ranks=4), alone, HERE) == ["zbench-0"], "they share cores"


def measure(monkeypatch: pytest.MonkeyPatch, out: Path, *flags: str) -> list[tuple[Cell, tuple[str, ...]]]:
    """Run the benchmark twice with made-up figures; return what was measured."""
    asked: list[tuple[Cell, tuple[str, ...]]] = []

    def measured(cell: Cell, modes: Sequence[str], _: Mapping[str, str], rounds: int) -> dict[str, Figures]:
        asked.append((cell, tuple(modes)))
        steps = {"ddp": 0.2, "alone": 0.08}
        return {m: Figures([steps.get(m, 0.1)] * 2 * rounds, 2 << 20, 3 << 20) for m in modes}

    monkeypatch.setattr(engines, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["engines", "--rounds", "3", "--out", str(out), *flags])
    engines.main()
    engines.main()
    return asked


def test_the_table_names_the_best_peer_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = measure(monkeypatch, tmp_path / "grid", "--what", "grid", "--cells", "2")
    assert len(asked) == len(set(asked)) == 2 * 7, "what was measured is not measured again"
    text = table(json.loads((tmp_path / "grid.json").read_text())["matches"], GRID)
    assert "14 matches measured" in text
    assert "| zbench-0 | ddp, zero_redundancy | 2 | 1.00 | 1.00 | 1.00 | 1.00 |" in text
    assert "| zbench-0 | alone | 2 | 1.25 | 1.25 | 1.25 | 1.10 |" in text
    cell = "| 6 x 512, float32, 2 ranks, 1 backwards | zbench-1 | zero_redundancy |"
    assert f"{cell} 1.00 (1.00 to 1.00) | 100.0 / 100.0 | 2 / 2 | 3 / 3 |" in text
    assert "deepspeed" not in text, "there is no interpreter for it"


@pytest.mark.parametrize("what", ["one", "compiled"])
def test_each_plan_measures_what_it_compares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    measure(monkeypatch, tmp_path / what, "--what", what)
    text = (tmp_path / f"{what}.md").read_text()
    for match in PLANS[what].matches:
        if "deepspeed" not in match.theirs[0]:
            assert f"| {match.ours} | {', '.join(match.theirs)} |" in text


def test_a_sweep_of_healthy_engines_covers_every_engine() -> None:
    sweep = load_sweep(ROOT / "tools" / "benchmarks" / "healthy.yaml")
    trials = expand(sweep).trials
    assert {trial.engine.engine for trial in trials} >= {"builtin", "ddp", "zero_redundancy", "fsdp2"}
    assert {trial.run.steps for trial in trials} == {1, 3, 10, 50, 200}
    assert sweep.search.method == "covering"


def test_the_sweep_of_estimates_has_at_least_200_configurations() -> None:
    expansion = expand(load_sweep(ROOT / "tools" / "benchmarks" / "llama-8b.yaml"))
    assert len(expansion.trials) >= 200
    assert not expansion.invalid
