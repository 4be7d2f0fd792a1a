"""Checks the text file, the model, the preset and the command of a sweep, without importing torch."""

from collections.abc import Iterator
from pathlib import Path

from zbench.errors import UsageError, nearest
from zbench.spec import shapes
from zbench.spec.axes import matching, resolve_axes
from zbench.spec.expand import all_points
from zbench.spec.keys import PARAMETERS
from zbench.spec.problems import KeyPath, Problem
from zbench.spec.shapes import gpt_shape, mlp_shape
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import TrialSpec
from zbench.spec.workload import FILES, MODULE_CALLABLE, WorkloadSpec, command_mistakes, names_of

_COMMAND = ("workload", "command")
BUILT_IN_MODELS = {"gpt": gpt_shape, "mlp": mlp_shape}


def input_problems(sweep: SweepSpec, base_dir: Path) -> list[Problem]:
    """Return the problems of the workloads of a sweep, each mistake once."""
    mistakes = [mistake for workload in _workloads(sweep) for mistake in _mistakes(workload, base_dir)]
    problems = [Problem(place_of(sweep, key), message) for key, message in mistakes]
    return list(dict.fromkeys([*problems, *_of_the_whole(sweep)]))


def _of_the_whole(sweep: SweepSpec) -> Iterator[Problem]:
    """Yield the conflicts between the command and the other sections of the sweep."""
    template = sweep.workload.command
    if template is None:
        for key in ("against", "precise", "same_training"):
            if getattr(sweep.verify, key) and "command" not in sweep.axes:
                yield Problem(("verify", key), f"{key} needs workload.command; leave it out")
        return
    try:
        used = names_of(template)
    except ValueError:  # `command_mistakes` reports it
        return
    commands = [
        template,
        *(value for axis in resolve_axes(sweep) if axis.path == _COMMAND for value in axis.values or ()),
    ]
    for name in sorted(sweep.workload.parameters.keys() - set().union(*map(names_of, commands))):
        message = f"the command does not use {{{name}}}, so it changes nothing; add it to the command"
        yield Problem((*PARAMETERS, name), message)
    if used & FILES.keys():
        return
    for name, axis in zip(sweep.axes, resolve_axes(sweep), strict=True):
        leaf = axis.path[-1]
        if axis.path[0] == "engine" and leaf != "engine_python" and leaf not in used:
            message = f"the command does not use {{{leaf}}}, so this axis changes nothing"
            yield Problem(("axes", name), f"{message}; add it to the command")


def place_of(sweep: SweepSpec, key: str) -> KeyPath:
    """Return the path of a key such as `workload.data.text` in the file: of its axis, or in its section."""
    path = tuple(key.split("."))
    for name, axis in zip(sweep.axes, resolve_axes(sweep), strict=True):
        if axis.path == path:
            return ("axes", name)
    return path


def _workloads(sweep: SweepSpec) -> Iterator[WorkloadSpec]:
    """Yield the workload of each point of the workload axes; of a range only the upper end."""
    axes = [axis for axis in resolve_axes(sweep) if axis.path[0] == "workload"]
    listed = {
        axis.key: list(axis.values) if axis.values else [axis.range and axis.range.high] for axis in axes
    }
    excludes = [
        entry
        for entry, paths in zip(sweep.exclude, matching(sweep), strict=True)
        if all(path[0] == "workload" for path in paths)
    ]
    alone = sweep.model_copy(update={"axes": listed, "exclude": excludes})
    for trial in all_points(alone):
        if isinstance(trial, TrialSpec):
            yield trial.workload
        elif not trial.key.startswith("workload"):  # an engine key is invalid, not the workload
            yield WorkloadSpec.model_validate(trial.config["workload"])


def _mistakes(workload: WorkloadSpec, base_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for each mistake in one workload."""
    name = workload.model
    if workload.command is not None:
        yield from command_mistakes(workload)
        default = WorkloadSpec()
        for key in (
            "model",
            "preset",
            "options",
            "loss",
            "data",
            "loss_weighting",
            "activation_checkpointing",
            "checkpointed_classes",
            "offload_activations",
            "loss_chunks",
        ):
            if getattr(workload, key) != getattr(default, key):
                remedy = f"name it parameters.{key}" if key in workload.parameters else f"leave {key} out"
                yield f"workload.{key}", f"a command brings its own model and data; {remedy}"
        return
    for key in ("step_times", "checkpoint", "parameters"):
        if getattr(workload, key):
            yield f"workload.{key}", f"{key} needs workload.command; set it, or leave {key} out"
    if name in BUILT_IN_MODELS:
        try:
            BUILT_IN_MODELS[name](workload.preset, workload.options)
        except UsageError as error:
            yield f"workload.{'preset' if 'preset' in str(error) else 'options'}", str(error)
    elif name.startswith(shapes.PREFIX):
        pass  # `expand.conflict` checks it for each point
    elif ":" not in name:
        choices = f"expected {', '.join(BUILT_IN_MODELS)}, hf:NAME_OR_PATH, or your own as module:callable"
        yield "workload.model", f"unknown model {name!r}{nearest(name, BUILT_IN_MODELS)}; {choices}"
    elif not MODULE_CALLABLE.fullmatch(name):
        yield "workload.model", f"expected module:callable, such as models:build, got {name!r}; correct it"
    for section, key, function in (
        ("workload", "loss", workload.loss),
        ("workload.data", "dataset", workload.data.dataset),
    ):
        if function is not None and name in BUILT_IN_MODELS:
            yield f"{section}.{key}", f"{key} is for a model of your own, not for {name}; leave it out"
        elif function is not None and not MODULE_CALLABLE.fullmatch(function):
            yield f"{section}.{key}", f"expected module:callable, such as training:{key}, got {function!r}"
    if workload.data.text is not None:
        message = text_problem(base_dir / workload.data.text, workload.sequence_length)
        if message:
            yield "workload.data.text", message


def text_problem(path: Path, sequence_length: int) -> str | None:
    """Return what is wrong with a text file, or None. It must have at least sequence_length + 1 bytes."""
    needed = sequence_length + 1
    try:
        if path.is_dir():
            return f"{path} is a directory; name a file"
        if path.exists() and not path.is_file():  # a pipe would be waited for
            return f"{path} is no regular file; name one"
        with path.open("rb") as file:
            held = len(file.read(needed))
    except FileNotFoundError:
        return f"no such file: {path}; the path is relative to the sweep file"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}); check its permissions"
    if held == 0:
        return f"{path} is empty; name a text of at least {needed} bytes"
    if held < needed:
        return (
            f"{path} holds {held} bytes, but one sequence needs {needed} (sequence_length + 1);"
            " name a longer text or lower workload.sequence_length"
        )
    return None
