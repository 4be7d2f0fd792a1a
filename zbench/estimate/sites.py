"""What a tensor's memory is for, from where it was allocated: the innermost code that is not torch's.

The engine's folders are its categories. Whether this table is right is tested: at the end of a step it must
give what the engine's own objects say they hold (`Engine.memory_by_category`).
"""

import sys
from functools import cache
from pathlib import Path
from types import CodeType

import torch

PARAMETERS, GRADIENTS, MASTER, MOMENTS = "parameters", "gradients", "master", "moments"
BUCKETS, SPECULATIVE, ACTIVATIONS, TEMPORARIES = "buckets", "speculative", "activations", "temporaries"

_PACKAGE = Path(__file__).parents[1]
_HIDDEN = tuple(
    f"{folder}/" for folder in (Path(torch.__path__[0]), _PACKAGE / "estimate", _PACKAGE / "measure")
)
_ENGINE = f"{_PACKAGE / 'engine'}/"
_ON_BEHALF = ("memory/", "adam/", "parameters/hooks.py:__call__")
"""They allocate for whoever calls them; the last runs a module's own forward."""
_TABLE = {  # the longest match counts
    "transport/scratch.py": BUCKETS,
    "parameters/": PARAMETERS,
    "gradients/reduced_buffers.py:zeros": GRADIENTS,
    "gradients/reduced_buffers.py:__init__": GRADIENTS,
    "gradients/reduced_buffers.py:target": GRADIENTS,
    "gradients/bucket_buffers.py:open": GRADIENTS,
    "optimizer/shard_optimizer.py:__init__": MOMENTS,
    "optimizer/shard_optimizer.py:<listcomp>": MOMENTS,
    "assembly/optimizer.py:_masters_in": MASTER,
    "assembly/optimizer.py:_staging": BUCKETS,
    "speculative/rollback.py": SPECULATIVE,
    "speculative/assemble.py": SPECULATIVE,
}
MODEL = "model"
"""Code outside of the engine: in the forward, what the model allocates."""


def allocation_site() -> tuple[str, str]:
    """Return (category, where) of the allocation that is being made; MODEL where the engine has no part."""
    frame = sys._getframe(2)
    while frame is not None:
        found = _category(frame.f_code)
        if found is not None:
            return found, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        back = frame.f_back
        if back is None:
            break
        frame = back
    return MODEL, ""


@cache
def _category(code: CodeType) -> str | None:
    file = code.co_filename
    if file.startswith(_HIDDEN) or file.startswith("<"):
        return None
    if not file.startswith(_ENGINE):
        return MODEL
    place = f"{file.removeprefix(_ENGINE)}:{code.co_name}"
    if place.startswith(_ON_BEHALF):
        return None
    matches = [key for key in _TABLE if place.startswith(key)]
    return _TABLE[max(matches, key=len)] if matches else TEMPORARIES
