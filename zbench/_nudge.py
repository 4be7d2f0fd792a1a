"""Runs inside a training script, as its `sitecustomize`: adds rounding errors, and reports on the training.

The script's environment need not have zbench, and its Python may be older (3.8 or later): only the standard
library is imported at the start. Three variables of the environment say what happens:

- `ZBENCH_NUDGE_UNITS`: by how many units in the last place weights are nudged; 0 changes nothing.
- `ZBENCH_REPORT_DIR`: the folder to which each process that trains writes a `Report`.
- `ZBENCH_CHECKPOINT`: the path of the checkpoint; the report says how many steps followed its last change.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_OPTIMIZERS = "torch.optim.optimizer"


class WatchOptimizers:
    """Changes torch's optimizers as they are imported.

    The first optimizer that takes a parameter nudges its weights: each moves up or down by `units` units in
    the last place. After each step of an optimizer, weights of float32 and float64 are nudged again, so that
    errors arise all along the training, as the errors of another order of additions do. Once autocast has
    computed in a shorter dtype, each gradient is also off by half a unit in the last place of that dtype. The
    signs are the same on every rank, and no draw is taken from the script's generators.
    """

    def __init__(self, units: int, report_dir: str | None, checkpoint: str | None) -> None:
        self._units, self._report_dir = units, report_dir
        self._report = Report(SavedFile(checkpoint))
        self._seen: set[int] = set()
        self._steps = 0
        self._roundoff = 0.0  # of the shortest dtype in which autocast has computed

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec that changes torch's optimizers when they are loaded; None for other names."""
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            self.change(module)

        spec.loader.exec_module = execute_and_change
        return spec  # type: ignore[no-any-return]

    def change(self, module: Any) -> None:
        """Change the optimizers of `torch.optim.optimizer`."""
        original = module.Optimizer.__init__

        def watched(instance: Any, params: Any, defaults: Any) -> None:
            original(instance, params, defaults)
            self._begin([p for p in _parameters(instance) if id(p) not in self._seen])

        module.Optimizer.__init__ = watched
        if hasattr(module, "register_optimizer_step_post_hook"):
            module.register_optimizer_step_pre_hook(self._before_step)
            module.register_optimizer_step_post_hook(self._after_step)

    def _begin(self, parameters: list[Any]) -> None:
        if not self._seen:
            watch_autocast(self._found_dtype)
            if self._report_dir is not None:
                from multiprocessing.util import Finalize  # at the end of forked workers, too

                Finalize(None, self._report.write, (self._report_dir,), exitpriority=0)
        self._seen |= {id(parameter) for parameter in parameters}
        if self._units:
            for parameter in parameters:
                nudge(parameter, 0, self._units)
        if self._report_dir is not None:
            self._report.add(parameters)

    def _found_dtype(self, dtype: Any) -> None:
        import torch

        self._roundoff = max(self._roundoff, torch.finfo(dtype).eps / 2)
        self._report.roundoff = self._roundoff

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        import torch

        if self._roundoff == 0.0 or not self._units:
            return
        with torch.no_grad():
            for parameter in _parameters(optimizer):
                if parameter.grad is not None and not parameter.grad.is_sparse:
                    values = _local(parameter.grad)
                    signs = 1.0 - 2.0 * _pattern(values, self._steps + 1).to(values.dtype)
                    values.add_(values * signs, alpha=self._roundoff)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._steps += 1
        self._report.saved.after_step()
        if self._units:
            for parameter in _parameters(optimizer):
                if parameter.grad is not None and _is_wide(parameter):
                    nudge(parameter, self._steps, self._units)


class SavedFile:
    """The checkpoint, a file or a folder, and the optimizer step before which it changed last."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._stamps = self._list() if path is not None else []
        self._digest = b""
        self._seen_after = 0
        self.steps = 0

    def after_step(self) -> None:
        """Note whether the file changed since the step before."""
        self.steps += 1
        if self._path is not None and (stamps := self._list()) != self._stamps:
            self._stamps, self._digest, self._seen_after = stamps, self._content(), self.steps

    def missed_steps(self) -> int:
        """Return how many optimizer steps the file lacks, at least; 0 if it changed after the last step."""
        if not self._seen_after or self._list() != self._stamps or self._content() != self._digest:
            return 0
        return self.steps - self._seen_after + 1

    def _list(self) -> list[tuple[str, int, int, int]]:
        stamps = []
        for file in self._files():
            with contextlib.suppress(OSError):
                facts = os.stat(file)
                stamps.append((file, facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return stamps

    def _content(self) -> bytes:
        digest = hashlib.sha256()
        for file in self._files():
            with contextlib.suppress(OSError), open(file, "rb") as content:
                while piece := content.read(1 << 20):
                    digest.update(piece)
        return digest.digest()

    def _files(self) -> list[str]:
        path = str(self._path)
        below = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        return sorted(below) or [path]


class Report:
    """The first values of what a process trains, and of the buffers of its modules.

    Final values are written as `key_of` them, by which first values find the names in a checkpoint. roundoff:
    half a unit in the last place of the shortest dtype in which autocast computed; 0 without autocast.
    mixing: the class of a layer with which a loss is no mean over samples; empty if there is none.
    """

    def __init__(self, saved: SavedFile) -> None:
        self.saved, self.roundoff, self.mixing = saved, 0.0, ""
        self._firsts: list[tuple[Any, Any]] = []  # parameters, and their first values on the host
        self._buffers: list[tuple[Any, str, Any]] = []  # weak modules, names, and first values on the host
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, parameters: list[Any]) -> None:
        """Note the first values of parameters, and of the buffers of all modules that are new."""
        from torch.nn import Module

        self._firsts += [(parameter, _local(parameter).cpu().clone()) for parameter in parameters]
        for module in [object_ for object_ in gc.get_objects() if issubclass(type(object_), Module)]:
            with contextlib.suppress(Exception):  # a module that is made up of other modules on access
                self._add_buffers(module)

    def _add_buffers(self, module: Any) -> None:
        if module in self._modules:
            return
        self._modules.add(module)
        self.mixing = self.mixing or (type(module).__name__ if mixes_samples(module) else "")
        for name, buffer in module.__dict__.get("_buffers", {}).items():
            if buffer is not None and buffer.is_floating_point():
                self._buffers.append((weakref.ref(module), name, _local(buffer).cpu().clone()))

    def write(self, folder: str) -> None:
        """Write the report of this process."""
        with contextlib.suppress(Exception):  # at the end of a process a device may be gone
            import torch

            pairs = [(_local(parameter).cpu(), first) for parameter, first in self._firsts]
            moved = [last.double() - first.double() for last, first in pairs]
            alive = ((reference(), name, first) for reference, name, first in self._buffers)
            buffers = [(m._buffers.get(name), first) for m, name, first in alive if m is not None]
            pairs += [(_local(last).cpu(), first) for last, first in buffers if last is not None]
            report = {
                "squares": sum(float(distance.square().sum()) for distance in moved),
                "elements": sum(distance.numel() for distance in moved),
                "firsts": [(first, key_of(last)) for last, first in pairs],
                "steps": self.saved.steps,
                "missed_steps": self.saved.missed_steps(),
                "roundoff": self.roundoff,
                "mixing": self.mixing,
            }
            torch.save(report, os.path.join(folder, f"{os.getpid()}.pt"))


def mixes_samples(module: Any) -> bool:
    """Return whether a layer in training takes the statistics of a micro-batch, or draws a mask for it."""
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.dropout import _DropoutNd

    if not module.training:
        return False
    share = module.p if isinstance(module, _DropoutNd) else module.__dict__.get("dropout", 0.0)
    return isinstance(module, _BatchNorm) or (isinstance(share, float) and share > 0)


def key_of(values: Any) -> tuple[int, int, int]:
    """Return three integers by which a tensor of these float32 values is found among others."""
    import torch

    bits = values.detach().float().contiguous().view(torch.int32).reshape(-1).to(torch.int64)
    weights = torch.arange(bits.numel()) % 65_521 + 1
    return bits.numel(), int(bits.sum()), int((bits * weights).sum())


def watch_autocast(found: Any) -> None:
    """Have `found` called with each dtype in which autocast computes."""
    from torch.amp import autocast_mode

    autocast: Any = autocast_mode.autocast
    enter = autocast.__enter__

    def watching(context: Any) -> Any:
        if context._enabled:
            found(context.fast_dtype)
        return enter(context)

    if enter.__name__ != "watching":
        autocast.__enter__ = watching


def nudge(parameter: Any, seed: int, units: int) -> None:
    """Move the weights of a floating-point parameter up or down, each by as many units in the last place.

    In a dtype shorter than float32 it is one unit. seed: of the signs.
    """
    import torch

    with torch.no_grad():
        local = _local(parameter)
        if local.numel() and local.is_floating_point():
            infinite = torch.full_like(local, float("inf"))
            up = _pattern(local, seed)
            unit = torch.nextafter(local, torch.where(up, infinite, -infinite)).sub_(local)
            local.add_(unit, alpha=units if _is_wide(local) else 1)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _is_wide(tensor: Any) -> bool:
    return bool(tensor.is_floating_point()) and tensor.element_size() >= 4


def _pattern(values: Any, seed: int) -> Any:
    """Return random booleans, the same for the same seed and shape."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, values.shape, generator=generator, dtype=torch.bool).to(values.device)


def be_sitecustomize() -> None:
    """Watch optimizers, and run the `sitecustomize` that this one hides, if there is one."""
    units = int(os.environ.get("ZBENCH_NUDGE_UNITS", "0"))
    report_dir, checkpoint = (os.environ.get(f"ZBENCH_{name}") for name in ("REPORT_DIR", "CHECKPOINT"))
    sys.meta_path.insert(0, WatchOptimizers(units, report_dir, checkpoint))
    places = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    be_sitecustomize()
