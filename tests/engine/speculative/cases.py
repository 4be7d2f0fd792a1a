"""What the ranks of a test run: one training run under three schedules, compared bit by bit."""

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from tests.engine import models
from tests.engine.plain import assert_same
from zbench.engine import build_engine
from zbench.engine.protocols import StepInfo
from zbench.spec.engine import EngineSpec

GROUPS: dict[int, dict[str, dict[str, Any]]] = {
    1: {},
    2: {"*bias": {"weight_decay": 0.0}},
    5: {
        "*qkv*": {"betas": [0.95, 0.95], "bias_correction": False},
        "*bias": {"weight_decay": 0.0, "bias_correction": False},
        "*0*": {"betas": [0.8, 0.99], "lr": 3e-3},
        "*first*": {"betas": [0.5, 0.9], "weight_decay": 0.2, "bias_correction": False},
        "*4*": {"eps": 1e-5, "amsgrad": True},
        "*last*": {"lr": 1e-2, "amsgrad": True, "betas": [0.4, 0.999]},
        "*norm*": {"weight_decay": 0.0, "amsgrad": True},
    },
}
LIMITS = {"never": 1e6, "always": 1e-3, "off": 0.0}
SOMETIMES = {"mlp": 1.5, "gpt": 19.0, "odd": 4.0}
MODES = ("single", "micro_steps", "multi_backward", "unmanaged")


@dataclass(frozen=True)
class Case:
    """One point of the lattice. `bucket`: elements of a reduction; `each`: reduce at every backward."""

    model: str = "mlp"
    stage: int = 1
    groups: int = 1
    clip: str = "never"
    mode: str = "single"
    dtype: str = "float32"
    bucket: int = 1500
    each: bool = False
    offload_param: bool = False
    moments: str = "float32"
    ratio: float = 1.0
    rollback: str = "double_buffer"
    steps: int = 20

    def spec(self, schedule: str) -> EngineSpec:
        """Return the specification of this case with no offload ("none") or under a schedule."""
        patterns = [name for name, _ in models.make(self.model).named_parameters()]
        return EngineSpec.model_validate(
            {
                "zero_stage": self.stage,
                "offload_optimizer": "none" if schedule == "none" else "cpu",
                "offload_schedule": "after_backward" if schedule == "none" else schedule,
                "offload_ratio": 1.0 if schedule == "none" else self.ratio,
                "rollback": self.rollback if schedule == "speculative" else "double_buffer",
                "offload_param": "cpu" if self.offload_param else "none",
                "gradient_clipping": SOMETIMES[self.model] if self.clip == "sometimes" else LIMITS[self.clip],
                "accumulation_mode": "micro_steps" if self.mode == "single" else self.mode,
                "gradient_accumulation_steps": 3 if self.mode == "micro_steps" else 1,
                "reduce_at": "each_backward" if self.each else "auto",
                "reduce_bucket_size": self.bucket,
                "sub_group_size": 512,
                "dtype": self.dtype,
                "initial_loss_scale": 2.0**16,
                "loss_scale_window": 4,
                "optimizer": {"moments_dtype": self.moments},
                "param_groups": {
                    p: g for p, g in GROUPS[self.groups].items() if any(_matches(n, p) for n in patterns)
                },
            }
        )


def _matches(name: str, pattern: str) -> bool:
    return pattern.strip("*") in name


def train_under(
    group: dist.ProcessGroup | None, case: Case, schedule: str
) -> tuple[dict[str, Tensor], list[StepInfo]]:
    """Return the whole state after a run, and what each step was.

    Every third step's loss is eight times larger, so that its gradients alone exceed the limit "sometimes";
    the learning rate of the last group changes at every step; a parameter is frozen for a while.
    """
    rank = dist.get_rank(group) if group is not None else 0
    model = models.make(case.model)
    engine = build_engine(model, case.spec(schedule), group)
    backwards = 1 if case.mode == "single" else 3
    infos = []
    for step in range(case.steps):
        engine.param_groups[-1]["lr"] = 1e-3 * (1 + step % 5)
        _freeze(model, step in range(case.steps // 5, 2 * case.steps // 5))
        for micro in range(backwards):
            loss = models.loss(model, models.batch(case.model, step, micro, rank))
            last = micro == backwards - 1 if case.mode == "multi_backward" else None
            engine.backward(loss * (8.0 if step % 3 == 0 else 1.0), last)
        infos.append(engine.step())
    state = engine.state_dict()
    if case.stage < 3:  # there, parameters are whole only while they are used
        state |= {f"model.{n}": p.detach().clone() for n, p in model.named_parameters()}
    engine.close()
    return state, infos


def compare(group: dist.ProcessGroup, case: Case) -> Counter[str]:
    """Assert that no offload, after_backward and speculative leave the same bits; count what happened."""
    (none, _), (after, _), (state, infos) = (
        train_under(group, case, schedule) for schedule in ("none", "after_backward", "speculative")
    )
    for other, label in ((after, "after_backward"), (none, "no offload")):
        assert_same(state, other, f"{case}: differ from {label}")
    return Counter(
        itertools.chain.from_iterable(
            [name for name in ("clipped", "skipped", "rolled_back") if getattr(info, name)] for info in infos
        )
    )


def _freeze(model: nn.Module, frozen: bool) -> None:
    name = (
        "layers.2" if isinstance(model, models.Mlp) else "last" if isinstance(model, models.Odd) else "norm"
    )
    model.get_submodule(name).weight.requires_grad_(not frozen)
