"""Training runs drawn over the zoo: the sample on which the limits of a verdict are set and tested.

A draw chooses a model, hyperparameters as people set them, 2 to 4 ranks, and 5 to 300 steps. The distribution
was fixed before the limits; a seed gives the same training runs everywhere.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

from tests.zoo.table import MODELS, ZooModel

STEPS = {5: 0.45, 20: 0.3, 60: 0.2, 300: 0.05}
RANKS = {2: 0.6, 3: 0.2, 4: 0.2}
BETAS = (
    (0.9, 0.999),
    (0.9, 0.95),
    (0.9, 0.98),
    (0.8, 0.99),
    (0.5, 0.9),
    (0.5, 0.999),
    (0.95, 0.9999),
    (0.0, 0.99),
)
BUILT_IN = (
    ZooModel("gpt", "decoder", "gpt", {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64}, True),
    ZooModel("mlp", "mlp", "mlp", {"hidden": 64, "vocabulary": 64}, True),
)
"""zbench's own workloads; the zoo has every other model."""


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """One drawn training run. workload, engine: keys of a sweep file. seed: of the workload."""

    model: ZooModel
    workload: dict[str, Any]
    engine: dict[str, Any]
    world_size: int
    steps: int
    seed: int

    @property
    def is_usual(self) -> bool:
        """A learning rate of at most 0.01 and at most 60 steps: few such runs may be `unchecked`."""
        return bool(self.engine["optimizer"]["lr"] <= 0.01) and self.steps <= 60

    @property
    def title(self) -> str:
        """Model, dtype and hyperparameters in one line."""
        engine = self.engine
        return (
            f"{self.model.name} {engine['dtype']} W={self.world_size} steps={self.steps} seed={self.seed}"
            f" clip={engine['gradient_clipping']:.3g} accumulate={engine['gradient_accumulation_steps']}"
            f" {engine['optimizer']}"
        )


def drawn_run(lot: random.Random) -> DrawnRun:
    """Draw a training run. A third of the draws have torch's default optimizer and no clipping."""
    model = lot.choice(MODELS + BUILT_IN)
    dtype = lot.choice(["float32", "float32", "bfloat16"]) if model.bfloat16 else "float32"
    workload = {
        "model": model.model,
        "options": dict(model.options),
        "sequence_length": lot.choice([8, 16]),
        "micro_batch_size": lot.choice([2, 4]),
    }
    engine: dict[str, Any] = {
        "dtype": dtype,
        "gradient_accumulation_steps": lot.choice([1, 1, 2]),
        "gradient_clipping": 0.0,
        "optimizer": {"name": "adamw", "lr": 1e-3},
    }
    if lot.random() > 1 / 3:
        engine["gradient_clipping"] = lot.choice([0.0, 1.0, _log_uniform(lot, 1e-3, 1e3)])
        engine["optimizer"] = _optimizer(lot)
    return DrawnRun(
        model,
        workload,
        engine,
        world_size=_weighted(lot, RANKS),
        steps=_weighted(lot, STEPS),
        seed=lot.randrange(1 << 30),
    )


def _optimizer(lot: random.Random) -> dict[str, Any]:
    """Draw hyperparameters of Adam: half of the draws keep torch's eps, a third its betas."""
    return {
        "name": lot.choice(["adam", "adamw", "adamw"]),
        "lr": _log_uniform(lot, 1e-6, 0.3),
        "betas": BETAS[0] if lot.random() < 1 / 3 else lot.choice(BETAS),
        "eps": 1e-8 if lot.random() < 0.5 else _log_uniform(lot, 1e-12, 1e-4),
        "weight_decay": lot.choice([0.0, 0.01, 0.1, 0.3]),
        "amsgrad": lot.random() < 0.1,
    }


def _log_uniform(lot: random.Random, least: float, largest: float) -> float:
    return float(f"{math.exp(lot.uniform(math.log(least), math.log(largest))):.3g}")


def _weighted(lot: random.Random, weights: dict[int, float]) -> int:
    return lot.choices(list(weights), list(weights.values()))[0]
