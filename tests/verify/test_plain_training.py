"""The reference is plain PyTorch: held against a loop written out by hand, bit for bit."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.verify.runs import GPT, MLP, reference, task, training
from zbench.errors import UsageError
from zbench.verify.limits import REPEATED_WITHIN
from zbench.verify.plain_training import PlainTask, make_reference, require_same
from zbench.verify.trajectory import digest
from zbench.workloads import Workload

SIXTEENS = {**MLP, "options": {"hidden": 64, "vocabulary": 256}}  # multiples of 16: torch needs no padding


def by_hand(
    of: PlainTask, max_norm: float = 0.0, *, each_backward: bool = False
) -> tuple[dict[str, Tensor], list[float]]:
    """Two ranks and three micro-batches with torch's own clipping-free AdamW; returns parameters and
    losses."""
    workload, micros, ranks = of.workload, of.accumulation.backwards, of.workload.world_size
    model = workload.make_model()
    adamw = torch.optim.AdamW(model.parameters(), of.spec.optimizer.lr, fused=True)
    losses = []
    for step in range(of.steps):
        grads = [[gradient(workload, model, step, m, r, losses) for m in range(micros)] for r in range(ranks)]
        for place, parameter in enumerate(model.parameters()):
            if each_backward:
                total = sum((grads[0][m][place] + grads[1][m][place] for m in range(1, micros)),
                            grads[0][0][place] + grads[1][0][place])  # fmt: skip
            else:
                one, other = (
                    sum((grads[r][m][place] for m in range(1, micros)), grads[r][0][place]) for r in (0, 1)
                )
                total = one + other
            parameter.grad = total * torch.tensor(1 / (ranks * micros), dtype=torch.float64).float()
        adamw.step()
    return {name: p.detach() for name, p in model.named_parameters()}, losses


def gradient(
    workload: Workload, model: nn.Module, step: int, micro: int, rank: int, losses: list[float]
) -> list[Tensor]:
    model.zero_grad()
    loss = workload.loss(model, workload.batch(step, micro, rank))
    loss.backward()
    losses.append(loss.item())
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("each_backward", [False, True])
def test_parameters_and_losses_are_those_of_a_loop_by_hand(each_backward: bool) -> None:
    order = "each_backward" if each_backward else "boundary"
    of = task(SIXTEENS, gradient_accumulation_steps=3, reduce_at=order)
    parameters, losses = by_hand(of, each_backward=each_backward)
    whole = reference(of, truth=False)
    made = whole.plain
    assert made.names == tuple(parameters)
    assert all(
        torch.equal(whole.parameters[name][:], value.reshape(-1)) for name, value in parameters.items()
    )
    assert made.losses.shape == (5, 2, 3)
    assert made.losses.reshape(-1).tolist() == losses
    assert made.digests[-1].tolist() == [digest(value) for value in parameters.values()]


UNEQUAL = {
    "model": "tests.worker.models:Reader",
    "data": {"dataset": "tests.worker.models:padded"},
    "loss_weighting": "tokens",
}


def test_micro_batches_count_by_their_tokens() -> None:
    of = task(UNEQUAL, steps=1, gradient_accumulation_steps=3)
    model = of.workload.make_model()
    batches = [of.workload.batch(0, micro, rank) for micro in range(3) for rank in range(2)]
    sizes = [batch[0].numel() for batch in batches]
    assert len(set(sizes)) > 1
    total = sum(of.workload.loss(model, b) * n for b, n in zip(batches, sizes, strict=True)) / sum(sizes)
    total.backward()
    for name, gradient in reference(of, truth=False).gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad.reshape(-1))


@pytest.mark.parametrize("micros", [1, 2])
def test_only_several_micro_batches_round_gradients_to_the_accumulation_dtype(micros: int) -> None:
    full, short = (
        reference(task(MLP, steps=1, gradient_accumulation_steps=micros, grad_accum_dtype=dtype), truth=False)
        for dtype in ("float32", "bfloat16")
    )
    assert torch.equal(full.plain.digests, short.plain.digests) == (micros == 1)


def test_the_norm_is_that_of_averaged_gradients_and_clipping_limits_it() -> None:
    free = reference(task(MLP, steps=1), truth=False)
    workload = task(MLP).workload
    model = workload.make_model()
    sum(workload.loss(model, workload.batch(0, 0, rank)) for rank in (0, 1)).backward()  # type: ignore[union-attr]
    norm = math.sqrt(
        sum(float((p.grad / 2).double().square().sum()) for p in model.parameters() if p.grad is not None)
    )
    free_norm = free.plain.grad_norms.item()
    assert free_norm == pytest.approx(norm, rel=1e-6)
    clipped = reference(task(MLP, steps=1, gradient_clipping=norm / 10), truth=False)
    assert clipped.plain.grad_norms.item() == pytest.approx(free_norm, rel=1e-12)
    for name, moment in clipped.moments.items():
        torch.testing.assert_close(moment, free.moments[name] / 10, rtol=1e-4, atol=1e-12)


def test_the_truth_is_the_same_training_in_float64() -> None:
    made = reference(task(GPT, gradient_clipping=0.5, gradient_accumulation_steps=2))
    assert made.truth.keys() == made.parameters.keys()
    for name, exact in made.truth.items():
        assert exact.dtype == torch.float64
        assert not torch.equal(exact, exact.float().double())
        torch.testing.assert_close(made.parameters[name].double(), exact, rtol=1e-2, atol=1e-3)
    assert bool((made.travelled > 0).all())


class SinglePrecision(nn.Linear):
    """Stands for an operation without a float64 form, such as grouped matrix products."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if self.weight.dtype == torch.float64:
            raise RuntimeError("Expected a Float32 matrix, got Double\nand more")
        return super().forward(tokens.to(self.weight.dtype)).square().mean()


def test_where_only_the_float64_run_fails_the_reference_alone_judges() -> None:
    of = task(MLP)
    of = replace(of, workload=replace(of.workload, factory=lambda: SinglePrecision(32, 8)))
    threads = torch.get_num_threads()
    made = reference(of)
    assert (made.truth, torch.get_num_threads()) == ({}, threads)
    (warning,) = made.warnings
    assert warning.endswith("RuntimeError: Expected a Float32 matrix, got Double")
    assert made.parameters.keys() == {"weight", "bias"}


@pytest.mark.parametrize("truth", [False, True])
def test_progress_counts_every_step_of_every_run_to_the_total(truth: bool) -> None:
    told: list[tuple[int, int]] = []
    make_reference(task(MLP, steps=3), truth=truth, on_step=lambda done, total: told.append((done, total)))
    total = 6 if truth else 3
    assert told == [(done, total) for done in range(1, total + 1)]


def test_float16_skips_overflowing_steps_and_the_truth_skips_the_same() -> None:
    made = reference(task(MLP, dtype="float16", initial_loss_scale=2.0**24, steps=14))
    skipped = len(made.plain.skipped)
    assert 0 < skipped < 14
    assert made.plain.skipped == tuple(range(skipped))
    assert (made.plain.digests[: skipped - 1] == made.plain.digests[0]).all()
    assert not torch.equal(made.plain.digests[skipped], made.plain.digests[0])
    exact = next(iter(made.truth.values()))
    mine = next(iter(made.parameters.values()))
    assert float((exact - mine).abs().max()) < 0.01


class Changed(nn.Module):
    """A model whose loss is `change`d; its data are tokens and targets."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 4)
        self.scale = nn.Parameter(torch.ones(3))
        self.own = np.random.default_rng()

    def change(self, loss: Tensor) -> Tensor:
        return loss

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.change(self.embed(tokens).square().mean() * self.scale.sum())


class Noisy(Changed):
    def change(self, loss: Tensor) -> Tensor:
        return loss * (1 + 1e-5 * self.own.random())


class LateNoise(Changed):
    """Adds nothing to the loss, and noise to a gradient."""

    def change(self, loss: Tensor) -> Tensor:
        noise = self.scale * float(self.own.random())
        return loss + (noise - noise.detach()).sum()


class Dropping(Changed):
    def change(self, loss: Tensor) -> Tensor:
        return nn.functional.dropout(loss.expand(64)).mean()


def test_what_torch_draws_is_the_same_in_every_run() -> None:
    of = training(Dropping, steps=2)
    one, other = (reference(of, truth=False).plain for _ in range(2))
    assert torch.equal(one.digests, other.digests)
    model = of.workload.make_model()
    batch = of.workload.batch(0, 0, 0)
    assert len({of.workload.loss(model, batch).item() for _ in range(4)}) > 1


class Drawing(Changed):
    """Draws in the dtype of the model, as stochastic depth does."""

    def change(self, loss: Tensor) -> Tensor:
        x = loss.detach().expand(64)
        noise = torch.rand(64, dtype=x.dtype) + torch.randn_like(x) + torch.empty_like(x).uniform_(1, 2)
        return loss * (1 + noise.abs().mean())


class Grouped(Changed):
    """Multiplies groups of rows with a matrix each, as a mixture of experts does."""

    def change(self, loss: Tensor) -> Tensor:
        rows, matrices = torch.ones(8, 16), torch.eye(16).expand(2, 16, 16)
        ends = torch.tensor([3, 7], dtype=torch.int32)
        of_groups = torch.nn.functional.grouped_mm(rows.to(loss.dtype), matrices.to(loss.dtype), offs=ends)
        return loss * of_groups[:7].mean()  # torch leaves the last row as it was


def test_the_float64_run_has_grouped_matrix_products() -> None:
    made = reference(training(Grouped, steps=1))
    torch.testing.assert_close(made.true_losses, made.plain.losses, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_float64_run_draws_what_the_model_draws_in_its_own_dtype(dtype: str) -> None:
    made = reference(training(Drawing, steps=2, dtype=dtype))
    rounding = {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
    torch.testing.assert_close(made.true_losses, made.plain.losses, rtol=rounding, atol=0.0)


@pytest.mark.parametrize(("model", "words"), [(Noisy, "loss"), (LateNoise, "gradient norm")])
def test_noise_of_any_size_is_refused_on_a_cpu(model: type[nn.Module], words: str) -> None:
    differ = rf"seed differ \({words} \d\.\d+ and \d\.\d+\), so nothing can be verified"
    with pytest.raises(UsageError, match=differ):
        reference(training(model))


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-5), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_another_device_may_round_otherwise_and_no_more(dtype: str, allowed: float) -> None:
    first = torch.tensor([1.0, 1.0, math.nan, 0.0], dtype=torch.float64)
    near, far = (first * torch.tensor([1.0, 1 + part * allowed, 1.0, 1.0]).double() for part in (0.9, 1.1))
    require_same("loss", first, near, REPEATED_WITHIN[dtype])
    for second, rounding in ((far, REPEATED_WITHIN[dtype]), (near, 0.0)):
        with pytest.raises(UsageError, match=r"\(loss 1 and 1\.\d+\)"):
            require_same("loss", first, second, rounding)
