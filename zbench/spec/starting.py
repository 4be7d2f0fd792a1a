"""Makes a first sweep file from another tool's file, from a model or script, or from nothing.

`foreign/` reads the file. The sweep keeps its settings and varies zero_stage and offload_optimizer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.spec import shapes
from zbench.spec.combinations import DEPENDENCIES
from zbench.spec.document import dump_yaml
from zbench.spec.engine import EngineSpec
from zbench.spec.expand import expand
from zbench.spec.foreign import accelerate, fsdp2, scripts
from zbench.spec.foreign.reading import Imported
from zbench.spec.foreign.recognition import FORMS, from_file
from zbench.spec.keys import value_at
from zbench.spec.load import sweep_from_mapping
from zbench.spec.peers import PEERS
from zbench.spec.workload import MODULE_CALLABLE

_SEQ2SEQ = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "whisper", "marian", "m2m_100", "nllb-moe")
"""Types of encoder-decoder models, whose configurations may leave `is_encoder_decoder` out."""
_COMMENTS = {
    "workload": (
        "The model and its data. `model` is gpt, mlp, hf:NAME_OR_PATH (transformers, random weights) or your",
        "own module:callable. Add `loss: module:function` if its forward returns no loss. `data` may be",
        "{synthetic: true}, {text: FILE} or {dataset: module:callable}.",
    ),
    "command": (
        "The command that trains; zbench replaces each {key} by its value. `step_times` says where the",
        "seconds of each step are, `checkpoint: {output}/FILE` where the weights to verify (own-script.md).",
    ),
    "run": ("How each configuration runs: ranks (one process each), steps, repeats in random order.",),
    "engine": ("Keys that all configurations share. `zbench schema` describes every key.",),
    "axes": ("Every valid combination of these values runs; `zbench plan` says why others are invalid.",),
    "objective": ("The best configuration must compute the same training step as plain PyTorch.",),
}


def starting_sweep(source: str | None, base_dir: Path, name: str = "first") -> Imported:
    """Return the sweep document for `--from SOURCE`. UsageError for a source in an unknown format.

    name: the sweep's name, if the source gives none.
    """
    sweep = _read(source, base_dir)
    if source is not None and value_at(sweep.document, ("workload", "command")) is None:
        _cut(sweep, base_dir)
    sweep.document = _completed({"name": name} | dict(sweep.document), sweep)
    checked = sweep_from_mapping(
        sweep.document, environ={}, source=f"--from {source}"
    )  # reports every mistake
    for point in expand(checked).invalid:
        sweep.document.setdefault("exclude", []).append(dict(point.axes))
    return sweep


def _read(source: str | None, base_dir: Path) -> Imported:
    if source is None:
        return Imported()
    path = Path(source)
    if source.startswith(shapes.PREFIX):
        return _of_model(source, base_dir)
    if MODULE_CALLABLE.fullmatch(source) and not path.exists():
        return Imported({"workload": {"model": source}})
    if fsdp2.is_export(path):
        return fsdp2.from_export(path)
    if scripts.is_script(path):
        return scripts.from_script(path, base_dir)
    form = scripts.form_of(source, base_dir)
    if form is not None:
        raise UsageError(f"--from {source}: {form}")
    if not path.exists():
        raise UsageError(f"--from {source}: no such file; expected {FORMS}")
    read = from_file(path)
    return read if isinstance(read, Imported) else _of_model(f"{shapes.PREFIX}{read}", base_dir)


def commented(document: Mapping[str, Any], source: str | None, schema: str | None = None) -> str:
    """Return a sweep document as YAML with a comment above each section. schema: its place, for editors."""
    origin = f", made from {source}" if source else ""
    lines = [] if schema is None else [f"# yaml-language-server: $schema={schema}"]
    lines.append(
        f"# A sweep for zbench{origin}. Run it with `zbench sweep FILE`; `zbench plan FILE` lists it first."
    )
    for section, value in document.items():
        comment = _COMMENTS.get("command" if "command" in value else section, ()) if section != "name" else ()
        lines += ["", *(f"# {line}" for line in comment)]
        cut = (
            [key for key in value.get("options", {}) if key in shapes.LAYERS] if section == "workload" else []
        )
        lines += [
            f"# `options` cuts the model to {value['options'][key]} layers; remove {key} for all."
            for key in cut
        ]
        lines.append(dump_yaml({section: value}).rstrip("\n"))
    return "\n".join(lines) + "\n"


def _of_model(model: str, base_dir: Path) -> Imported:
    """Return a workload of a transformers model. UsageError if it cannot be built."""
    problem = shapes.mistake(model, base_dir)
    if problem:
        raise UsageError(f"--from {problem}")
    return Imported({"workload": {"model": model}})


def _cut(sweep: Imported, base_dir: Path) -> None:
    """Keep two layers of a transformers model, so that a first sweep runs on any machine; a note says so."""
    model = str(value_at(sweep.document, ("workload", "model")) or "")
    if not model.startswith(shapes.PREFIX):
        return
    config = shapes.configuration(model, base_dir)
    if config.get("is_encoder_decoder", config.get("model_type") in _SEQ2SEQ):
        raise UsageError(
            f"--from {model}: an encoder-decoder model needs inputs for both parts; write a module with"
            " the model and its make_batch, and name it: --from my_module:make_model (docs/own-model.md)"
        )
    layers, layer_count = shapes.layers_of(config)
    if isinstance(layer_count, int) and layer_count <= 2:
        return
    sweep.document["workload"]["options"] = {layers: 2}
    whole = f"{layer_count} layers" if layer_count else "layers"
    sweep.note(
        "speed",
        f"workload.options: {layers} cuts the model to 2 of its {whole}, to need less memory; remove it for"
        " all",
    )


def _completed(imported: Mapping[str, Any], sweep: Imported) -> dict[str, Any]:
    """Return a complete sweep document: `imported`, and defaults for what it lacks."""
    accelerate.within_peer(sweep)
    workload, engine = dict(imported.get("workload", {})), dict(imported.get("engine", {}))
    if "command" in workload:
        run = {"warmup_steps": 2, "steps": 10, "repeats": 3} | imported["run"]
        return {"name": imported["name"], "workload": workload, "run": run, "axes": imported["axes"]}
    model: dict[str, Any] = {} if "model" in workload else {"model": "gpt", "preset": "nano"}
    data: dict[str, Any] = {"data": {"synthetic": True}, "sequence_length": 128, "micro_batch_size": 2}
    run = {"world_size": "auto", "warmup_steps": 2, "steps": 6, "repeats": 5, "timeout": "120s"}
    read = {key.removeprefix("engine."): values for key, values in imported.get("axes", {}).items()}
    stage, offload = engine.get("zero_stage", read.get("zero_stage")), engine.get("offload_optimizer")
    axes = _axes(engine, read)
    document = {
        "name": str(imported["name"]),
        "workload": model | data | workload,
        "run": run | imported.get("run", {}),
        "engine": {"optimizer": {"name": "adamw", "lr": 1e-3}} | engine,
        "axes": axes,
        "exclude": [{"zero_stage": 0, "offload_optimizer": "cpu"}],
        "objective": {"maximize": "tokens_per_s", "subject_to": {"verdict": ">= equivalent"}},
    }
    if 0 not in axes["zero_stage"] or "cpu" not in axes.get("offload_optimizer", ()):
        del document["exclude"]
    if (stage, offload) != (None, None) and not isinstance(stage, list):
        document["name"] = f"{document['name']}-around-stage-{stage or 0}"
    return document


def _axes(engine: dict[str, Any], read: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes around an engine: its stage, its offload, what the file lists, what depends on these.

    Keys that become axes are removed from `engine`.
    """
    peer = PEERS.get(str(engine.get("engine")))
    stage = engine.pop("zero_stage", None)
    is_3 = stage == 3 and engine.get("offload_param", "none") != "none"
    if peer is not None:
        stages = [3] if is_3 else sorted(peer.stages, key=lambda one: (one != stage, one))
        return {"zero_stage": stages, **read}
    axes: dict[str, Any] = {"zero_stage": [3] if is_3 else [0, 1, 2, 3]}
    engine.pop("offload_optimizer", None)
    axes |= {"offload_optimizer": ["none", "cpu"], **read}
    return axes | _conditional(engine, axes)


def _conditional(engine: dict[str, Any], axes: dict[str, Any]) -> dict[str, Any]:
    """Return an axis with a condition for each key that acts at some values of an axis; move it there."""
    added: dict[str, Any] = {}
    defaults = EngineSpec().model_dump(mode="json")
    for need in DEPENDENCIES:
        key, on = need.key[1], need.on[1]
        held = axes.get(key, engine.get(key, defaults.get(key)))
        values = axes.get(on)
        if (
            need.refusal is None
            or len(need.key) != 2
            or held == defaults[key]
            or not isinstance(values, list)
        ):
            continue
        acting = [value for value in values if value in need.values]
        if acting == values or (key == "offload_optimizer"):
            continue
        engine.pop(key, None)
        listed = axes.pop(key, held)
        if acting:
            added[key] = {"values": listed if isinstance(listed, list) else [listed], "when": {on: acting}}
    return added
