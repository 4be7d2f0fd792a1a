"""A first sweep file from what a user has: a DeepSpeed, accelerate or Trainer file, a model, or nothing.

The sweep keeps the settings of the file it comes from and varies the stage and the optimizer's place around
them. What does not map is a note.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.spec import callables, shapes
from zbench.spec.deepspeed import Translated, from_deepspeed
from zbench.spec.document import read_document
from zbench.spec.dump import dump_yaml
from zbench.spec.load import sweep_from_mapping
from zbench.spec.stacks import from_accelerate, from_training_args

_FORMS = "ds_config.json, accelerate.yaml, training_args.json, hf:NAME_OR_CONFIG or my_module:make_model"
_COMMENTS = {
    "workload": (
        "What is trained. `model` may be gpt, mlp, hf:NAME_OR_PATH (transformers, random weights) or your",
        "own module:callable; `loss: module:function` where its forward returns no loss; `data` may be",
        "{synthetic: true}, {text: FILE} or {dataset: module:callable}.",
    ),
    "run": ("How each configuration is run: ranks (one process each), steps, repeats in random order.",),
    "engine": ("What all configurations share. `zbench schema` lists every key with its meaning.",),
    "axes": ("Every combination of these is tried; what cannot exist is listed with the reason.",),
    "objective": ("No configuration is best unless it trains what plain PyTorch trains.",),
}


def starting_sweep(source: str | None, base_dir: Path) -> Translated:
    """Return the sweep document for `--from SOURCE`; UsageError for a source of no known form."""
    if source is None:
        found = Translated({})
    elif source.startswith(shapes.PREFIX):
        found = Translated({"workload": _hf_workload(source, base_dir)})
    elif callables.FORM.fullmatch(source) and not Path(source).exists():
        problem = callables.mistake(source, base_dir)
        if problem:
            raise UsageError(f"--from {problem}")
        found = Translated({"workload": {"model": source}})
    elif Path(source).exists():
        found = _from_file(Path(source), base_dir)
    else:
        raise UsageError(f"--from {source}: no such file; expected {_FORMS}")
    document = _completed(found.document)
    sweep_from_mapping(document, environ={}, source=f"--from {source}")  # every mistake is told here
    return Translated(document, found.notes)


def commented(document: Mapping[str, Any], source: str | None) -> str:
    """Return a sweep document as YAML with a comment above each section."""
    origin = f", made from {source}" if source else ""
    lines = [
        f"# A sweep for zbench{origin}. Run it with `zbench sweep FILE`; `zbench plan FILE` lists it first."
    ]
    for section, value in document.items():
        lines += ["", *(f"# {line}" for line in _COMMENTS.get(section, ()))] if section != "name" else [""]
        lines.append(dump_yaml({section: value}).rstrip("\n"))
    return "\n".join(lines) + "\n"


def _from_file(path: Path, base_dir: Path) -> Translated:
    data = read_document(path).data
    if not isinstance(data, Mapping):
        raise UsageError(f"--from {path}: expected a mapping of keys; expected one of {_FORMS}")
    if "model_type" in data:
        return Translated({"workload": _hf_workload(f"{shapes.PREFIX}{path}", base_dir)})
    if "distributed_type" in data or "compute_environment" in data:
        return from_accelerate(data, path.parent)
    if "per_device_train_batch_size" in data or "output_dir" in data or "learning_rate" in data:
        return from_training_args(data, path.parent)
    try:
        return from_deepspeed(data)
    except UsageError as error:
        raise UsageError(f"--from {path}: {error}; or use one of {_FORMS}") from None


def _hf_workload(model: str, base_dir: Path) -> dict[str, Any]:
    """Return a workload of two layers of a model, so that a first sweep runs on any machine."""
    problem = shapes.mistake(model, base_dir)
    if problem:
        raise UsageError(f"--from {problem}")
    name = model.removeprefix(shapes.PREFIX)
    found = shapes.config_file(name, base_dir)
    config = read_document(found).data if found else shapes.bundled(name)
    layers = "n_layer" if (config or {}).get("model_type") == "gpt2" else "num_hidden_layers"
    return {"model": model, "options": {layers: 2}}


def _completed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a name, a workload, a run and axes around what was found."""
    workload, engine = dict(found.get("workload", {})), dict(found.get("engine", {}))
    model: dict[str, Any] = {} if "model" in workload else {"model": "gpt", "preset": "nano"}
    data: dict[str, Any] = {"data": {"synthetic": True}, "sequence_length": 128, "micro_batch_size": 2}
    run = {"world_size": 2, "warmup_steps": 2, "steps": 6, "repeats": 2, "timeout": "120s"}
    own = engine.pop("zero_stage", None), engine.pop("offload_optimizer", None)
    stages = [0, 1, 2, 3] if engine.get("offload_param", "none") == "none" else [3]
    document = {
        "name": str(found.get("name", "first")),
        "workload": model | data | workload,
        "run": run | found.get("run", {}),
        "engine": {"optimizer": {"name": "adamw", "lr": 1e-3}} | engine,
        "axes": {"zero_stage": stages, "offload_optimizer": ["none", "cpu"]},
        "exclude": [{"zero_stage": 0, "offload_optimizer": "cpu"}],
        "objective": {"maximize": "tokens_per_s", "subject_to": {"verdict": ">= equivalent"}},
    }
    if stages == [3]:
        del document["exclude"]
    if own != (None, None):
        document["name"] = f"{document['name']}-around-stage-{own[0] or 0}"
    return document
