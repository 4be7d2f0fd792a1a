"""The peak that `zbench estimate` says of many `hf:` models, against the measured one.

    python -m tools.benchmarks.model_estimates [--out FILE]

Each architecture is trained from a `config.json` in two sizes on two ranks: in float32 at stages 0 and 3, and
in bfloat16 at stage 3. Both peaks count bytes, so it does not matter how busy the machine is.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.benchmarks import results
from tools.benchmarks.trials import warm_runner
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.spec.trial import TrialSpec

TINY = {"hidden": 64, "inner": 128, "heads": 4, "layers": 2, "vocabulary": 512, "length": 32}
SMALL = {"hidden": 256, "inner": 1024, "heads": 4, "layers": 4, "vocabulary": 4096, "length": 128}
SIZES = {"tiny": TINY, "small": SMALL}
LARGEST = {"tiny": 0.01, "small": 0.005}
"""Bars: the largest error of each size in float32."""
MODELS: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "mixtral": {"num_local_experts": 4}, "qwen2": {}, "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16}, "gemma2": {"head_dim": 16}, "gemma3_text": {"head_dim": 16}, "phi": {},
    "phi3": {"pad_token_id": 0}, "olmo": {}, "olmo2": {}, "granite": {}, "starcoder2": {}, "stablelm": {},
    "cohere": {}, "falcon": {}, "bloom": {"n_head": 4, "n_layer": 2}, "gpt2": {}, "gpt_neox": {},
    "gptj": {"rotary_dim": 8}, "gpt_bigcode": {}, "codegen": {"rotary_dim": 8}, "opt": {}, "biogpt": {},
    "xglm": {}, "smollm3": {"pad_token_id": 0}, "glm": {"pad_token_id": 0, "head_dim": 16},
    "helium": {"head_dim": 16}, "nemotron": {},
}  # fmt: skip
"""model_type -> what its configuration needs besides the sizes."""
Finding = dict[str, Any]


def config(kind: str, size: dict[str, int]) -> dict[str, Any]:
    """Return a `config.json`: each size under all the names that architectures have for it."""
    named = {
        "hidden": ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"),
        "inner": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
        "heads": ("num_attention_heads", "n_head", "attention_heads"),
        "layers": ("num_hidden_layers", "n_layer", "num_layers"),
        "vocabulary": ("vocab_size",),
        "length": ("max_position_embeddings", "n_positions"),
    }
    sizes = {name: size[what] for what, names in named.items() for name in names}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_key_value_heads": 2}
    dropout = dict.fromkeys(
        ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout"), 0.0
    )
    return {"model_type": kind, **sizes, **tokens, **dropout, **MODELS[kind]}


def trials(folder: Path) -> Iterator[TrialSpec]:
    """Yield every configuration; their `config.json` files are written below `folder`."""
    for name, size in SIZES.items():
        for kind in MODELS:
            place = folder / f"{kind}-{name}"
            place.mkdir()
            (place / "config.json").write_text(json.dumps(config(kind, size)))
            for dtype, stage in (("float32", 0), ("float32", 3), ("bfloat16", 3)):
                axes = {"model": kind, "size": name, "dtype": dtype, "zero_stage": stage}
                workload = {"model": f"hf:{place}", "sequence_length": size["length"], "micro_batch_size": 2}
                run = {"world_size": 2, "device": "cpu", "warmup_steps": 1, "steps": 1, "timeout": 300}
                engine = {"zero_stage": stage, "dtype": dtype}
                yield TrialSpec.model_validate(
                    {
                        "workload": workload,
                        "run": run,
                        "engine": engine,
                        "verify": {"mode": "off"},
                        "axes": axes,
                    }
                )


def report(findings: Sequence[Finding]) -> tuple[str, bool]:
    """Return the largest errors by architecture as a table, those of each size and dtype, and whether the bar
    is met.
    """
    groups = [(size, dtype) for dtype in ("float32", "bfloat16") for size in SIZES]
    errors: dict[tuple[str, str], dict[str, float]] = {group: {} for group in groups}
    for one in findings:
        of_group = errors[one["axes"]["size"], one["axes"]["dtype"]]
        kind = one["axes"]["model"]
        of_group[kind] = max(of_group.get(kind, 0.0), abs(one["zbench"] / one["measured"] - 1))
    kinds = list(dict.fromkeys(one["axes"]["model"] for one in findings))
    rows = [[kind, *(f"{errors[group].get(kind, 0.0):.3%}" for group in groups)] for kind in kinds]
    lines = [
        f"- {', '.join(group)}: median {statistics.median(of.values()):.3%}, largest {max(of.values()):.3%}"
        for group, of in errors.items()
        if of
    ]
    text = results.table(("architecture", *(", ".join(group) for group in groups)), rows)
    met = all(max(errors[size, "float32"].values(), default=0.0) <= bar for size, bar in LARGEST.items())
    return f"{text}\n\n" + "\n".join(lines), met


def main() -> None:
    """Measure, print, and exit with 1 where the bar is missed."""
    given = results.parser(__doc__).parse_args()
    findings: list[Finding] = []
    with (
        tempfile.TemporaryDirectory(prefix="zbench-models-") as folder,
        Simulator(Path.cwd()) as simulator,
        warm_runner() as runner,
    ):
        for trial in trials(Path(folder)):
            estimate, record = simulator.of(trial), runner.run(trial)
            if not isinstance(estimate, Estimate) or record.memory is None:
                results.say(f"{trial.axes}: {estimate if record.memory else record.error}")
                continue
            peaks = {"measured": record.memory.peak_device_bytes, "zbench": estimate.peak_device_bytes}
            findings.append({"axes": trial.axes, **peaks})
            results.say(findings[-1])
    text, is_met = report(findings)
    print(text)
    results.write(given.out, text, {"findings": findings})
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main()
