"""Reads back the Python that `zbench export --to fsdp2` writes (`zbench.spec.targets.fsdp2_code`)."""

import ast
import re
from pathlib import Path

from zbench.errors import UsageError
from zbench.spec.document import read_text
from zbench.spec.foreign.reading import Imported
from zbench.spec.targets import FSDP2_BEGINS

_CONSTANTS = {
    "MICRO_BATCH_SIZE": "workload.micro_batch_size",
    "GRADIENT_ACCUMULATION_STEPS": "engine.gradient_accumulation_steps",
}


def is_export(path: Path) -> bool:
    """Return whether a file is Python that zbench exported for FSDP2."""
    return path.suffix == ".py" and path.is_file() and read_text(path).startswith(FSDP2_BEGINS)


def from_export(path: Path) -> Imported:
    """Return the settings of an export as a sweep document. UsageError if its code was changed."""
    sweep = Imported({"name": "exported", "engine": {"engine": "fsdp2"}})
    try:
        _read_all(sweep, read_text(path))
    except (SyntaxError, ValueError, KeyError, IndexError) as error:
        raise UsageError(
            f"--from {path}: this export for FSDP2 was changed, and cannot be read ({error}); export it anew,"
            " or name the script that uses it"
        ) from None
    sweep.note("training", "workload.model: the export has none; name it, as hf:NAME or module:callable")
    return sweep


def _read_all(sweep: Imported, text: str) -> None:
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            sweep.put(_CONSTANTS[ast.unparse(node.targets[0])], ast.literal_eval(node.value))
    sweep.put("engine.zero_stage", 3 if '"reshard_after_forward": True' in text else 2)
    if group := re.search(r"\(world_size // (\d+), ", text):
        sweep.put("engine.shard_group_size", int(group[1]))
    if "CPUOffloadPolicy()" in text:
        sweep.put("engine.offload_optimizer", "cpu")
        sweep.put("engine.offload_param", "cpu")
    if "set_requires_gradient_sync(True)" not in text:
        sweep.put("engine.reduce_at", "boundary")
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        _read(sweep, ast.unparse(call.func), call)


def _read(sweep: Imported, name: str, call: ast.Call) -> None:
    """Take over the settings of one call."""
    arguments = {str(keyword.arg): keyword.value for keyword in call.keywords}
    if name in ("torch.optim.Adam", "torch.optim.AdamW"):
        sweep.put("engine.optimizer.name", name.rpartition(".")[2].lower())
        for key in arguments.keys() - {"fused"}:
            value = ast.literal_eval(arguments[key])
            sweep.put(f"engine.optimizer.{key}", list(value) if isinstance(value, tuple) else value)
    elif name == "nn.utils.clip_grad_norm_":
        sweep.put("engine.gradient_clipping", ast.literal_eval(call.args[1]))
    elif name == "MixedPrecisionPolicy":
        reduced = ast.unparse(arguments["reduce_dtype"]).removeprefix("torch.")
        sweep.put("engine.dtype", ast.unparse(arguments["param_dtype"]).removeprefix("torch."))
        if reduced != "float32":
            sweep.put("engine.communication_dtype", reduced)
