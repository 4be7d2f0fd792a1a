"""What configurations become elsewhere, whole: a change shows in tests/spec/kept."""

from pathlib import Path
from typing import Any

import pytest

from tests.keeping import check
from tests.making import make_trial
from zbench.spec import targets
from zbench.spec.cards import CARDS
from zbench.spec.document import dump_yaml
from zbench.spec.starting import commented, starting_sweep
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import values_of

KEPT = Path(__file__).parent / "kept"
AMSGRAD = {"amsgrad": True, "lr": 3e-4, "betas": [0.8, 0.99]}
ENGINES: dict[str, dict[str, Any]] = {
    "default": {},
    "adam": {"optimizer": {"name": "adam", "weight_decay": 0.1}, "gradient_clipping": 1.0},
    "amsgrad": {"zero_stage": 1, "optimizer": AMSGRAD},
    "amsgrad-offload": {"zero_stage": 2, "offload_optimizer": "cpu", "optimizer": AMSGRAD},
    "uncorrected": {"zero_stage": 1, "offload_optimizer": "cpu", "optimizer": {"bias_correction": False}},
    "float16": {"zero_stage": 2, "dtype": "float16", "initial_loss_scale": 4096.0, "loss_scale_window": 50},
    "bfloat16": {"zero_stage": 1, "dtype": "bfloat16", "grad_accum_dtype": "float32"},
    "bfloat16-0": {"dtype": "bfloat16", "grad_accum_dtype": "float32"},
    "sent": {"zero_stage": 2, "communication_dtype": "bfloat16", "gradient_accumulation_steps": 4},
    "whole-3": {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu", "offload_ratio": 0.5},
    "groups": {"zero_stage": 3, "shard_group_size": 2, "reduce_at": "boundary", "overlap_comm": False},
    "fsdp2": {"engine": "fsdp2", "zero_stage": 3},
    "speculative": {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"},
    "compiled": {"zero_stage": 1, "compile": "inductor"},
    "sizes": {"zero_stage": 3, "reduce_bucket_size": 1000, "allgather_bucket_size": 2000,
              "sub_group_size": 3000, "prefetch_bucket_size": 4000, "param_persistence_threshold": 5000},
}  # fmt: skip


LONG = {"fsdp2", "command"}
"""Few configurations say all of these."""


def written(form: str, trial: TrialSpec) -> list[str]:
    if form == "command":
        return [f"{name}: {value}" for name, value in values_of(trial.config()).items()]
    export = getattr(targets, form)(trial)
    return [*export.text.splitlines(), *(f"note: {note}" for note in export.notes)]


@pytest.mark.parametrize("form", ["deepspeed", "accelerate", "hf_trainer", *sorted(LONG)])
def test_every_kind_of_configuration_becomes_what_is_kept(form: str) -> None:
    workload = {"micro_batch_size": 2, "activation_checkpointing": True}
    lines = []
    for name in ("default", "groups", "sent") if form in LONG else ENGINES:
        for device in ("cpu", "auto") if name in ("default", "amsgrad", "uncorrected") else ("auto",):
            trial = make_trial(ENGINES[name], workload=workload, world_size=4, device=device)
            lines += [f"== {name} {device}", *written(form, trial)]
    check(KEPT / f"{form}.txt", "\n".join(lines))


def test_a_first_sweep_is_what_is_kept(tmp_path: Path) -> None:
    check(KEPT / "first.yaml", commented(starting_sweep(None, tmp_path).document, None))


def test_known_cards_have_the_rates_of_their_data_sheets() -> None:
    check(KEPT / "cards.txt", "\n".join(f"{name}: {card.rates()}" for name, card in CARDS.items()))


def test_long_lists_are_folded_within_110_columns() -> None:
    just_too_long = [10**9] * 8 + [10**6]  # 111 columns
    text = dump_yaml({"sizes": [10**9 + n for n in range(30)], "edges": just_too_long})
    check(KEPT / "folded.yaml", text)
    assert 100 < max(map(len, text.splitlines())) <= 120
