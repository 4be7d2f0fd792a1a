"""What the warm server's environment is, and what it loads once so that a trial does not.

Only imports happen in the server: fork is safe after imports, and not after any parallel region (the child
would hang in OpenMP).
"""

import importlib
from collections.abc import Collection, Mapping

MODULES = ("zbench.worker.preload", "zbench.worker.main")
"""The first loads the memory shim before torch; the second all that every rank needs."""

_TRANSFORMERS = (
    "transformers.modeling_utils",
    "transformers.modeling_layers",
    "transformers.masking_utils",
    "transformers.generation.utils",
)
DYNAMO = ("torch._dynamo",)
"""As slow as torch itself; torch imports it in a process that first makes an optimizer or a checkpoint."""

HUGE_PAGES = "zbench.launch.huge_pages:use_huge_pages"
"""Takes a quarter of a second, and makes each trial some 20 ms shorter. It comes last."""

_COMPILER = ("torch._inductor.compile_fx", "zbench.engine.compiled.compile")
_MODEL_LIBRARIES = {"hf:": _TRANSFORMERS, "zbench.workloads.zoo:": (*_TRANSFORMERS, "zbench.workloads.zoo")}
"""Beginning of `workload.model` -> libraries that take every process of a trial seconds to import."""

ENGINE_LIBRARIES = {"zero_redundancy": ("torch.distributed.optim",)}
"""Engine -> what torch imports in each rank that builds it, for a quarter of a second."""

THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def libraries_for(
    models: Collection[str], engines: Collection[str] = (), *, dynamo: bool = True, compiles: bool = False
) -> tuple[str, ...]:
    """Return what a server whose trials train these models (`workload.model`) loads besides `MODULES`.

    engines: what trains them (`engine.engine`). dynamo: whether a trial may need torch._dynamo; without it a
    server starts in half the time. compiles: whether any of them has another `compile` than `off`.
    """
    found = [
        library
        for beginning, libraries in _MODEL_LIBRARIES.items()
        if any(model.startswith(beginning) for model in models)
        for library in libraries
    ]
    peers = [library for engine in engines for library in ENGINE_LIBRARIES.get(engine, ())]
    torchs = [*(DYNAMO if dynamo else ()), *(_COMPILER if compiles else ()), *peers]
    return tuple(dict.fromkeys([*torchs, *found]))


def environment(inherited: Mapping[str, str], cores: int) -> dict[str, str]:
    """Return the server's environment: thread counts are the trial's to set, not the caller's shell's."""
    kept = {key: value for key, value in inherited.items() if not key.startswith(THREAD_VARIABLES)}
    return kept | {
        "OMP_NUM_THREADS": str(cores),
        "OMP_DYNAMIC": "FALSE",
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads in the server, and fork would lose them
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for devices must not start CUDA before a fork
    }


def load(modules: tuple[str, ...]) -> list[str]:
    """Import the modules in order, and call the function of each `module:function`; return what failed, in
    words: a trial that needs it will say so again.
    """
    problems = []
    for name in modules:
        try:
            module, _, function = name.partition(":")
            loaded = importlib.import_module(module)
            if function:
                getattr(loaded, function)()
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {error}")
    return problems
