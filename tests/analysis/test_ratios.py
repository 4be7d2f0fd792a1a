"""The table of log ratios: its fit, its noise, and how often its bounds hold where the truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from zbench.analysis import ratios
from zbench.analysis.bounds import bounds_of, dunnett, naming_value
from zbench.analysis.cells import SUMMARIES, Cell, alone_row, cells_of
from zbench.analysis.ratios import fitted
from zbench.analysis.variances import Floats
from zbench.record.record import Heat
from zbench.record.summary import summarize
from zbench.spec.metrics import Goal

from .synthetic import record

ROWS = ("a", "b", "c", "d", "e", "f")
TURNS, STEPS = 4, 3


def in_turns(
    rng: np.random.Generator, true: Floats, heats: int, *, process: float = 0.01, turn: float = 0.03
) -> list[Cell]:
    """Return the cells of a sweep in heats: noise of processes, of turns, and of the machine."""
    cells = []
    for number in range(heats):
        cycles = rng.normal(0, 0.1) + rng.normal(0, 0.01, TURNS)
        for row, value in zip(ROWS, true, strict=False):
            level = value + rng.normal(0, process) + cycles + rng.normal(0, turn, TURNS)
            turns = tuple(one + rng.normal(0, 0.01, STEPS) for one in level)
            cells.append(Cell(row, str(number), str(number), turns))
    return cells


@pytest.mark.parametrize("most_dense", [0, ratios.MOST_DENSE])
@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_that_of_the_dense_projection(
    seed: int, most_dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratios, "MOST_DENSE", most_dense)
    rng = np.random.default_rng(seed)
    cells = in_turns(rng, rng.normal(0, 0.1, 6), 4)
    cells = [cell for cell in cells if rng.random() < 0.8]
    if seed % 3 == 0:
        cells = [replace(cell, turns=(cell.turns[0],)) for cell in cells]
    fit = fitted(cells, "mean")
    row = np.array([fit.rows.index(cell.row) for cell in cells])
    block = np.array([int(cell.block) for cell in cells])
    noise = fit.noise * np.array(fit.repeats)  # of one cell of each row
    weights = np.ones(len(cells)) if fit.dispersion is None else 1 / noise[row]
    design = np.zeros((len(cells), len(fit.rows) + 4))
    design[np.arange(len(cells)), row] = design[np.arange(len(cells)), len(fit.rows) + block] = 1
    root = np.sqrt(weights)
    projection = (np.linalg.pinv(root[:, None] * design) * root)[: len(fit.rows)]
    book = projection @ [SUMMARIES["mean"](cell.turns) for cell in cells]
    coefficients = rng.normal(0, 1, len(fit.rows))
    coefficients -= coefficients.mean()
    contrast = fit.contrast(dict(zip(fit.rows, coefficients.tolist(), strict=True)))
    error = math.sqrt(np.square(coefficients @ projection) @ noise[row])
    assert contrast.error == pytest.approx(error, rel=1e-6)
    assert contrast.value == pytest.approx(coefficients @ book, abs=1e-9)
    pair = (projection[0] - projection[-1]) ** 2 @ noise[row]
    assert fit.errors(np.array([0]), np.array([len(fit.rows) - 1])) == pytest.approx(math.sqrt(pair))


@pytest.mark.parametrize("turn", [0.01, pytest.param(0.06, marks=pytest.mark.check)])
@pytest.mark.parametrize("process", [0.02, pytest.param(0.0, marks=pytest.mark.check)])
@pytest.mark.parametrize("heats", [2, pytest.param(3, marks=pytest.mark.check)])
def test_bounds_hold_together_and_equals_have_no_best(heats: int, process: float, turn: float) -> None:
    """300 sweeps of six, three of them 5 % slower: bounds fail in 5 % at most, here with a band of 2 %."""
    rng = np.random.default_rng(heats)
    held = 0
    named = 0
    true = np.array([0, 0, 0, 0.05, 0.05, 0.05])
    for _ in range(300):
        bounds = bounds_of(fitted(in_turns(rng, true, heats, process=process, turn=turn)), ROWS, 0.05)
        truth = dict(zip(ROWS, true.tolist(), strict=True))
        held += all(bounds.at_least[row] <= truth[row] <= bounds.at_most[row] for row in ROWS)
        named += len(bounds.leaders) == 1
    assert held >= 279
    assert named <= 9, "1 %, and its band"


def test_one_that_is_ahead_is_named_after_two_repeats() -> None:
    rng = np.random.default_rng(5)
    true = np.array([0, *[0.1] * 5])
    answers = [bounds_of(fitted(in_turns(rng, true, 2)), ROWS, 0.05).leaders for _ in range(100)]
    assert sum(leaders == ("a",) for leaders in answers) >= 80
    assert not any(len(leaders) == 1 and leaders != ("a",) for leaders in answers)


def stalled(cells: list[Cell], rng: np.random.Generator, rows: str, share: float) -> list[Cell]:
    """Return cells in which steps of these rows take twice as long, this share of them."""
    return [
        replace(
            cell, turns=tuple(turn + math.log(2) * (rng.random(len(turn)) < share) for turn in cell.turns)
        )
        if cell.row in rows
        else cell
        for cell in cells
    ]


def test_stalls_of_the_machine_are_left_out() -> None:
    rng = np.random.default_rng(2)
    quiet = in_turns(rng, np.zeros(6), 3, turn=0.01)
    assert fitted(stalled(quiet, rng, "abcdef", 0.15)).summary != "mean"
    fit = fitted(stalled(quiet, rng, "a", 0.4))
    assert fit.summary == "mean"
    assert fit.contrast({"a": 1.0, "b": -1.0}).value > 0.15


def test_turns_are_split_as_taken_and_alone_is_a_row() -> None:
    timing = replace(record().timing, step_seconds=[0.1, 0.1, 0.2, 0.2, 0.2])
    beside = replace(record(), timing=timing, heat=Heat("h", [0.1, 0.2], alone=[0.05, 0.06]))
    cell, alone = cells_of(summarize([beside]), Goal("mean_step_s", "minimize"))
    assert [np.exp(turn).round(6).tolist() for turn in cell.turns] == [[0.1, 0.1], [0.2, 0.2, 0.2]]
    assert [np.exp(turn).round(6).tolist() for turn in alone.turns] == [[0.05], [0.06]]
    rates, _ = cells_of(summarize([beside]), Goal("samples_per_s", "maximize"))
    offset = rates.turns[0] - cell.turns[0]
    assert offset == pytest.approx(-math.log(beside.timing.samples_per_s * beside.timing.mean_step_s))


def test_alone_is_shared_whatever_the_order_of_keys() -> None:
    workloads = [{"model": "mlp", "hidden": 8}, {"hidden": 8, "model": "mlp"}, {"model": "mlp", "hidden": 9}]
    first, second, other = (alone_row(record(config={"workload": workload})) for workload in workloads)
    assert first == second != other


def test_a_stall_is_in_the_mean_of_all_steps_alone() -> None:
    """The others are geometric means of the middle half of all steps, and of the lower half."""
    logs = tuple(np.log(turn) for turn in ([1.0, 3.0, 2.0], [9.0, 4.0]))
    shorter = [(2 * 6.5) ** (1 / 2), (2 * 3 * 4) ** (1 / 3), (1 * 2 * 3) ** (1 / 3)]
    assert [float(np.exp(summary(logs))) for summary in SUMMARIES.values()] == pytest.approx(shorter)


def test_a_repeat_without_the_goals_figure_has_no_cell() -> None:
    repeats = [
        replace(record(repeat=n), timing=replace(record().timing, tokens_per_s=rate))
        for n, rate in enumerate([500.0, None, math.nan, 0.0])
    ]
    cells = cells_of(summarize(repeats), Goal("tokens_per_s", "maximize"))
    assert [cell.round.split()[-1] for cell in cells] == ["0", "3"], "nothing a second is a figure"


def test_critical_values() -> None:
    for degrees, alpha in ((1, 0.005), (4, 0.01), (30, 0.05), (500, 0.005)):
        assert dunnett(1, degrees, alpha) == pytest.approx(t.isf(alpha, degrees), rel=1e-4)
        assert naming_value(1, degrees, alpha) == pytest.approx(t.isf(alpha / 2, degrees), rel=1e-4)
    assert naming_value(1, 10) == pytest.approx(t.isf(0.01 / 2, 10), rel=1e-4), "1 % if nothing is said"
    assert dunnett(5, 10, 0.05) == pytest.approx(2.56, abs=0.01), "Dunnett's table 1a"
    rows = np.random.default_rng(0).normal(size=(400_000, 4))
    ahead = np.sort(rows)[:, 1] - np.sort(rows)[:, 0] > math.sqrt(2) * naming_value(3, 500, 0.05)
    assert ahead.mean() == pytest.approx(0.05, abs=0.002)
