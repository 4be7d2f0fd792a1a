"""Makes a first sweep file from a DeepSpeed, accelerate or Trainer file, from a model, or from nothing.

The sweep keeps the settings of that file and varies zero_stage and offload_optimizer. A setting that has no
counterpart gets a note. Keys: https://huggingface.co/docs/accelerate/package_reference/cli and
https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.spec import shapes
from zbench.spec.deepspeed import Translated, from_deepspeed
from zbench.spec.document import dump_yaml, read_document
from zbench.spec.load import sweep_from_mapping
from zbench.spec.workload import MODULE_CALLABLE

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_ACCELERATE_DEEPSPEED = {
    "zero_stage", "offload_optimizer_device", "offload_param_device", "gradient_accumulation_steps",
    "gradient_clipping",
}  # fmt: skip
_ACCELERATE = {  # keys that are read below or matter to the launch only
    "deepspeed_config", "mixed_precision", "num_processes", "use_cpu",
    "compute_environment", "debug", "distributed_type", "machine_rank", "num_machines", "main_process_ip",
    "main_process_port", "rdzv_backend", "same_network", "main_training_function", "gpu_ids",
    "enable_cpu_affinity", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "downcast_bf16",
}  # fmt: skip
_OPTIMIZER = {"learning_rate": "lr", "weight_decay": "weight_decay", "adam_epsilon": "eps"}
_ARGUMENTS = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "adam_beta1", "adam_beta2",
    "bf16", "fp16", "gradient_checkpointing", "seed", "deepspeed", "use_cpu", "optim",
    *_OPTIMIZER,
}  # fmt: skip


def from_accelerate(config: Mapping[str, Any], base_dir: Path) -> Translated:
    """Return a file of `accelerate config` as a sweep document; its paths are relative to `base_dir`."""
    theirs = dict(config.get("deepspeed_config") or {})
    named = theirs.pop("deepspeed_config_file", None)
    translated = from_deepspeed(read_document(base_dir / named).data) if named else Translated({})
    engine = dict(translated.document.get("engine", {}))
    notes = list(translated.notes)
    if not named and config.get("mixed_precision") in _DTYPES:
        engine["dtype"] = _DTYPES[config["mixed_precision"]]
        if theirs:
            engine["grad_accum_dtype"] = engine["dtype"]  # DeepSpeed's default
    for key, value in theirs.items():
        if key in _ACCELERATE_DEEPSPEED and value != "auto":
            engine[key.removesuffix("_device")] = value
        elif key not in ("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher"):
            notes.append(f"deepspeed_config.{key}: {value!r} has no counterpart; left out")
    run: dict[str, Any] = {"device": "cpu"} if config.get("use_cpu") else {}
    if int(config.get("num_processes") or 0) > 0:
        run["world_size"] = int(config["num_processes"])
    notes += [
        f"{key}: {value!r} has no counterpart; left out"
        for key, value in config.items()
        if value and key not in _ACCELERATE
    ]
    workload = translated.document.get("workload", {})
    return Translated({"name": "accelerate", "workload": workload, "run": run, "engine": engine}, notes)


def from_training_args(given: Mapping[str, Any], base_dir: Path) -> Translated:
    """Return TrainingArguments as a sweep document; a missing key takes the Trainer's default."""
    micro, steps = given.get("per_device_train_batch_size", 8), given.get("gradient_accumulation_steps", 1)
    clipping = given.get("max_grad_norm", 1.0)  # the Trainer's default
    optimizer = {ours: given[theirs] for theirs, ours in _OPTIMIZER.items() if theirs in given}
    optimizer = {"name": "adamw", "lr": 5e-5, "weight_decay": 0.0} | optimizer
    optimizer["betas"] = [given.get("adam_beta1", 0.9), given.get("adam_beta2", 0.999)]
    engine: dict[str, Any] = {}
    workload: dict[str, Any] = {"micro_batch_size": micro}
    notes: list[str] = []
    config = given.get("deepspeed")
    if config:
        written = config if isinstance(config, Mapping) else read_document(base_dir / str(config)).data
        filled = {"gradient_accumulation_steps": steps, "gradient_clipping": clipping}
        translated = from_deepspeed(filled | {k: v for k, v in dict(written).items() if v != "auto"})
        engine, notes = dict(translated.document["engine"]), [*notes, *translated.notes]
        theirs, block = engine.pop("optimizer", {}), dict(written).get("optimizer")
        params = (block.get("params") or {}) if isinstance(block, Mapping) else {}
        explicit = {key for key, value in params.items() if value != "auto"} | {"name"}  # else the Trainer's
        optimizer |= {key: value for key, value in theirs.items() if key in explicit}
    engine |= {"gradient_accumulation_steps": steps, "gradient_clipping": clipping, "optimizer": optimizer}
    for flag, dtype in _DTYPES.items():
        if given.get(flag):
            engine["dtype"] = dtype
    if given.get("gradient_checkpointing"):
        workload["activation_checkpointing"] = True
    if not str(given.get("optim", "adamw")).startswith("adamw"):
        notes.append(f"optim: {given['optim']!r} has no counterpart; AdamW stands in for it")
    left = sorted(given.keys() - _ARGUMENTS)
    notes += [f"left out, because zbench has no counterpart: {', '.join(left)}"] if left else []
    run = ({"device": "cpu"} if given.get("use_cpu") else {}) | {"seed": given.get("seed", 42)}
    return Translated({"name": "trainer", "workload": workload, "run": run, "engine": engine}, notes)


FORMS = "ds_config.json, accelerate.yaml, training_args.json, hf:NAME_OR_CONFIG or my_module:make_model"
_COMMENTS = {
    "workload": (
        "The model and its data. `model` is gpt, mlp, hf:NAME_OR_PATH (transformers, random weights) or your",
        "own module:callable. Add `loss: module:function` if its forward returns no loss. `data` may be",
        "{synthetic: true}, {text: FILE} or {dataset: module:callable}.",
    ),
    "run": ("How each configuration runs: ranks (one process each), steps, repeats in random order.",),
    "engine": ("Keys that all configurations share. `zbench schema` describes every key.",),
    "axes": ("Every valid combination of these values runs; `zbench plan` says why others are invalid.",),
    "objective": ("The best configuration must compute the same training step as plain PyTorch.",),
}


def starting_sweep(source: str | None, base_dir: Path, name: str = "first") -> Translated:
    """Return the sweep document for `--from SOURCE`. UsageError for a source in an unknown format.

    name: the sweep's name, if the source gives none.
    """
    if source is None:
        translated = Translated({})
    elif source.startswith(shapes.PREFIX):
        translated = _hf_workload(source, base_dir)
    elif MODULE_CALLABLE.fullmatch(source) and not Path(source).exists():
        translated = Translated({"workload": {"model": source}})
    elif Path(source).exists():
        translated = _from_file(Path(source), base_dir)
    else:
        raise UsageError(f"--from {source}: no such file; expected {FORMS}")
    document = _completed({"name": name} | dict(translated.document))
    sweep_from_mapping(document, environ={}, source=f"--from {source}")  # reports every mistake
    return Translated(document, translated.notes)


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
        raise UsageError(f"--from {path}: expected a mapping of keys; expected one of {FORMS}")
    if "model_type" in data:
        return _hf_workload(f"{shapes.PREFIX}{path}", base_dir)
    if "distributed_type" in data or "compute_environment" in data:
        return from_accelerate(data, path.parent)
    if "per_device_train_batch_size" in data or "output_dir" in data or "learning_rate" in data:
        return from_training_args(data, path.parent)
    try:
        return from_deepspeed(data)
    except UsageError as error:
        raise UsageError(f"--from {path}: {error}; or use one of {FORMS}") from None


def _hf_workload(model: str, base_dir: Path) -> Translated:
    """Return a workload with two layers of the model, so that a first sweep runs on any machine."""
    problem = shapes.mistake(model, base_dir)
    if problem:
        raise UsageError(f"--from {problem}")
    name = model.removeprefix(shapes.PREFIX)
    file = shapes.config_file(name, base_dir)
    config = read_document(file).data if file else shapes.bundled(name)
    layers = "n_layer" if (config or {}).get("model_type") == "gpt2" else "num_hidden_layers"
    known = (config or {}).get(layers)
    whole = f"{known} layers" if known else "layers"
    notes = [
        f"workload.options: {layers} cuts the model to 2 of its {whole}, to run anywhere; remove it for all"
    ]
    return Translated({"workload": {"model": model, "options": {layers: 2}}}, notes)


def _completed(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete sweep document: `known`, and defaults for what it lacks."""
    workload, engine = dict(known.get("workload", {})), dict(known.get("engine", {}))
    model: dict[str, Any] = {} if "model" in workload else {"model": "gpt", "preset": "nano"}
    data: dict[str, Any] = {"data": {"synthetic": True}, "sequence_length": 128, "micro_batch_size": 2}
    run = {"world_size": "auto", "warmup_steps": 2, "steps": 6, "repeats": 5, "timeout": "120s"}
    own = engine.pop("zero_stage", None), engine.pop("offload_optimizer", None)
    stages = [0, 1, 2, 3] if engine.get("offload_param", "none") == "none" else [3]
    document = {
        "name": str(known["name"]),
        "workload": model | data | workload,
        "run": run | known.get("run", {}),
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
