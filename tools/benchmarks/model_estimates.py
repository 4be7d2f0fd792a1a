"""The peak that `zbench estimate` says of many `hf:` models, against the measured one.

    python -m tools.benchmarks.model_estimates [--out FILE]

Each architecture is trained from a `config.json` in two sizes on two ranks, by the built-in engine and by
torch's own (`ENGINES`). Both peaks count bytes, so it does not matter how busy the machine is. Only FSDP2's
depends on when gloo's threads let go of a buffer; `tests/estimate/test_peers.py` waits for them, on the same
architectures.
"""

import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
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
ENGINES: dict[str, list[dict[str, Any]]] = {
    "builtin": [{"zero_stage": 0}, {"zero_stage": 3}],
    "builtin, bfloat16": [{"zero_stage": 3, "dtype": "bfloat16"}],
    "ddp": [{"zero_stage": 0, "engine": "ddp"}],
    "zero_redundancy": [{"zero_stage": 1, "engine": "zero_redundancy"}],
    "fsdp2": [{"zero_stage": 3, "engine": "fsdp2"}],
}
LARGEST = {"builtin": 0.01, "ddp": 0.003, "zero_redundancy": 0.003}
"""Bars: the largest error of each engine in float32."""
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


def trials(
    folder: Path, kinds: Iterable[str] = tuple(MODELS), sizes: Iterable[str] = tuple(SIZES)
) -> Iterator[TrialSpec]:
    """Yield every configuration; their `config.json` files are written below `folder`."""
    for name, kind in itertools.product(sizes, kinds):
        size = SIZES[name]
        place = folder / f"{kind}-{name}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config(kind, size)))
        workload = {"model": f"hf:{place}", "sequence_length": size["length"], "micro_batch_size": 2}
        run = {"world_size": 2, "device": "cpu", "warmup_steps": 1, "steps": 1, "timeout": 300}
        common = {"workload": workload, "run": run, "verify": {"mode": "off"}}
        for engine, rows in ENGINES.items():
            for row in rows:
                axes = {"model": kind, "size": name, "of": engine, **row}
                yield TrialSpec.model_validate({**common, "engine": row, "axes": axes})


def errors(findings: Sequence[Finding], **where: str) -> list[float]:
    """Return the relative errors of the findings whose axes have these values."""
    return [
        abs(one["zbench"] / one["measured"] - 1)
        for one in findings
        if all(one["axes"][axis] == value for axis, value in where.items())
    ]


def report(findings: Sequence[Finding]) -> tuple[str, bool]:
    """Return the largest errors by architecture and engine as a table, those of each engine and size, and
    whether the bars are met.
    """
    rows = []
    for kind in dict.fromkeys(one["axes"]["model"] for one in findings):
        largest = [max(errors(findings, model=kind, of=engine), default=None) for engine in ENGINES]
        rows.append([kind, *("-" if error is None else f"{error:.4%}" for error in largest)])
    lines = []
    for engine, size in itertools.product(ENGINES, SIZES):
        some = errors(findings, of=engine, size=size) or [math.nan]
        words = f"median {statistics.median(some):.4%}, largest {max(some):.4%} of {len(some)}"
        lines.append(f"- {engine}, {size}: {words}")
    is_met = all(max(errors(findings, of=engine), default=0.0) <= bar for engine, bar in LARGEST.items())
    return results.table(("architecture", *ENGINES), rows) + "\n\n" + "\n".join(lines), is_met


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
            estimate = simulator.of(trial)
            record = runner.run(trial)
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
