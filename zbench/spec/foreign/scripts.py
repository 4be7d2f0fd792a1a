"""What `--from` makes of Python: the form that names a model, or the skeleton of a command for a script."""

import ast
import re
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.spec.document import read_text
from zbench.spec.foreign.reading import Imported

_OPTION = re.compile(r"""add_argument\(\s*["'](--[\w-]+)""")


def form_of(source: str, base_dir: Path) -> str | None:
    """Return the message with the right form for a folder, module, file or dotted name; None if unknown."""
    path = Path(source)
    if path.is_dir():
        if (path / "config.json").is_file():
            return f"this is a folder of a model; write --from hf:{source}"
        return "this folder has no config.json of a model; name a file in it, or hf:FOLDER of a model"
    if path.suffix == ".py" and path.is_file():
        return _form_of_module(path, path.stem)
    module, _, name = source.rpartition(".")
    for place in (base_dir, Path.cwd()):
        if re.fullmatch(r"[A-Za-z_]\w*", source) and (place / f"{source}.py").is_file():
            return _form_of_module(place / f"{source}.py", source)
        if module and re.fullmatch(r"[A-Za-z_][\w.]*", source):
            file = place / f"{module.replace('.', '/')}.py"
            if file.is_file():
                return f"write a colon before the last name: --from {module}:{name}"
    return None


def _form_of_module(path: Path, module: str) -> str:
    names = [
        node.name
        for node in _tree(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    functions = [node.name for node in _tree(path).body if isinstance(node, ast.FunctionDef)]
    if not names:
        return (
            "this module defines no function and no class; name the function that makes your model:"
            f" --from {module}:NAME"
        )
    first = next((name for name in names if "model" in name.lower() and name in functions), None)
    first = first or next((name for name in names if name in functions), names[0])
    others = ", ".join(name for name in names if name != first)
    also = f" (it also has {others})" if others else ""
    return f"name the function or class that makes your model: --from {module}:{first}{also}"


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(read_text(path))
    except SyntaxError as error:
        raise UsageError(
            f"--from {path}:{error.lineno}: not Python: {error.msg}; correct the syntax"
        ) from None


def is_script(path: Path) -> bool:
    """Return whether a Python file trains when it is run: it begins a process group, or has a main part."""
    if path.suffix != ".py" or not path.is_file():
        return False
    text = read_text(path)
    begins = ("__main__", "init_process_group(", "deepspeed.initialize(", "Accelerator(", "trainer.train(")
    return any(word in text for word in begins)


def from_script(path: Path, base_dir: Path) -> Imported:
    """Return a sweep document that runs a training script; its notes say what to complete."""
    text = read_text(path)
    _tree(path)
    try:
        shown = path.absolute().relative_to(base_dir.absolute())
    except ValueError:
        shown = path.absolute()
    options = list(_OPTION.findall(text))
    words = [f"torchrun --nproc-per-node {{world_size}} --master-port {{port}} {shown}"]
    axes: dict[str, Any] = {}
    if any(option in ("--deepspeed", "--deepspeed_config", "--deepspeed-config") for option in options):
        words.append(next(option for option in options if option.startswith("--deepspeed")) + " {ds_config}")
        axes["zero_stage"] = [1, 2, 3]
    console = "deepspeed" if "deepspeed" in text else "transformers" if "Trainer(" in text else None
    times = {"console": console} if console else {"regex": r"step_seconds (?P<seconds>[0-9.]+)"}
    sweep = Imported({"name": "script", "workload": {"command": " ".join(words), "step_times": times}})
    sweep.document |= {"run": {"world_size": "auto"}, "axes": axes}
    if options:
        sweep.note("training",
        f"workload.command: the script takes {', '.join(options)}; add those that vary as"
                   " `--option {key}`, and the key to axes")  # fmt: skip
    if console is None:
        sweep.note("training",
        "workload.step_times: have the script print `step_seconds SECONDS` after each step,"
                   " or name its own line")  # fmt: skip
    sweep.note("speed", "workload.checkpoint: name the weights that the script saves, and they are verified")
    return sweep
