"""Sequences of what users do, on an engine and on plain PyTorch at once; runs inside the pool's ranks.

After every rule each parameter and each first moment of the engine has the bits of the plain run, or the rule
was refused and changed nothing. The plain run plays every rank.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tests.engine.cases import AccidentError
from tests.engine.plain import padded
from tests.engine.safety.sequence_pair import LAYERS, LOSSES, Pair, adapter, batch, usual
from zbench.engine.parameters.released import memory_of
from zbench.errors import UsageError

HELD: list[Callable[[nn.Parameter], Tensor]] = [
    lambda p: p.data,
    lambda p: p.detach(),
    lambda p: torch.tensor([], dtype=p.dtype).set_(p.detach().untyped_storage(), p.storage_offset(), p.shape),
]


def accident(gradient: Tensor) -> None:
    raise AccidentError


class Both(Pair):
    """The rules; each is a method."""

    def step(self) -> None:
        loss, backwards = self.draw.choice(LOSSES), self.draw.choice((1, 1, 2, 3))
        self.number += 1
        numbers = [10 * self.number + k for k in range(backwards)]
        if not loss(self.plain.model, batch(numbers[0], self.rank)).requires_grad:
            return  # it reads nothing that is trained

        def closure() -> None:
            for k, number in enumerate(numbers):
                self.engine.backward(loss(self.engine.model, batch(number, self.rank)), k == backwards - 1)
                if self.draw.random() < 0.2:
                    self.evaluate()

        if self.draw.random() < 0.3:
            self.engine.optimizer.step(closure)
        else:
            closure()
            self.engine.step()
        self.step_plain(loss, [[batch(n, r) for r in range(self.world)] for n in numbers])

    def discard_a_step(self) -> None:
        """Begin a step, and discard it in one of the two ways."""
        if self.trains:
            self.engine.backward(usual(self.engine.model, batch(4, self.rank)), last=self.draw.random() < 0.5)
        self.draw.choice((self.engine.zero_grad, self.engine.optimizer.zero_grad))()

    def evaluate(self) -> None:
        with torch.no_grad():
            mine, expected = (net(batch(0, self.rank)[0]) for net in self.nets)
        assert torch.equal(mine, expected)

    def stop_an_evaluation_early(self) -> None:
        net = self.engine.model
        with torch.no_grad():
            net.norm(net.first(batch(0, self.rank)[0].to(self.dtype)))

    def generate(self) -> None:
        x = batch(3, self.rank)[0]
        mine, expected = x, x
        with torch.inference_mode():
            for _ in range(3):
                mine = functional.pad(self.engine.model(mine), (0, 6))
                expected = functional.pad(self.plain.model(expected), (0, 6))
        assert torch.equal(mine, expected)

    def freeze_or_thaw(self) -> None:
        """What was frozen at the build is refused when it is unfrozen."""
        name = self.draw.choice(LAYERS)
        trains = self.draw.random() < 0.6
        if trains and f"{name}.weight" not in self.trained():
            layer = self.engine.model.get_submodule(name).requires_grad_(True)
            with pytest.raises(UsageError, match=f"'{name}.weight' was frozen"):
                self.engine.backward(usual(self.engine.model, batch(4, self.rank)), last=True)
            layer.requires_grad_(False)
            return
        for net in self.nets:
            net.get_submodule(name).requires_grad_(trains)

    def write(self) -> None:
        name = self.draw.choice(self.names)
        mine, expected = (net.get_parameter(name) for net in self.nets)
        with self.engine.gathered(mine, write=True), torch.no_grad():
            mine.mul_(0.75 if self.rank == 0 else 3.0)
            expected.mul_(0.75)
        self.sync_plain()

    def edit(self) -> None:
        """Change a weight between steps, as an attribute of its module."""
        module = self.draw.choice(("first", "second", "last", "norm"))
        for net in self.nets:
            net.get_submodule(module).weight.data.mul_(0.875)
        self.sync_plain()

    def edit_by_what_is_held(self) -> None:
        """Change a weight by another tensor, perhaps one from before a step; it may have left that memory."""
        name, hold = self.draw.choice(self.names), self.draw.choice(HELD)
        p, expected = (net.get_parameter(name) for net in self.nets)
        with self.engine.gathered(p) if self.row["zero_stage"] == 3 else nullcontext():
            held = hold(p)
            if self.draw.random() < 0.5 and self.row["zero_stage"] < 3:
                self.step()
            has_moved = held.data_ptr() != memory_of(p).data_ptr()
            if has_moved and not (self.trains and held.any()):
                return  # no step follows that could refuse it, or zeros stay what they are
            held.mul_(0.875)
        if has_moved:
            self.engine.backward(usual(self.engine.model, batch(4, self.rank)), last=True)
            with pytest.raises(UsageError, match="anew after each step"):
                self.engine.step()
            self.engine.zero_grad()
        else:
            expected.data.mul_(0.875)
        self.sync_plain()

    def edit_by_a_collective(self) -> None:
        name, hold = self.draw.choice(self.names), self.draw.choice(HELD)
        p, expected = (net.get_parameter(name) for net in self.nets)
        with self.engine.gathered(p) if self.row["zero_stage"] == 3 else nullcontext(), torch.no_grad():
            if self.draw.random() < 0.5:
                dist.all_reduce(hold(p), group=self.group)
                expected.mul_(self.world)
            else:
                if self.rank == 0:
                    hold(p).view(-1)[-3:] = 0.125
                dist.broadcast(hold(p), 0, group=self.group)
                expected.view(-1)[-3:] = 0.125
        self.sync_plain()

    def load_into_the_model(self) -> None:
        for net in self.nets:
            net.load_state_dict({n: v * 0.9375 for n, v in net.state_dict().items()})
        self.sync_plain()

    def save(self) -> None:
        of_torch = self.draw.random() < 0.5
        state = self.engine.optimizer.state_dict() if of_torch else self.engine.state_dict()
        self.saved.append((state, deepcopy(self.plain)))

    def load(self) -> None:
        if self.saved:
            state, plain = self.draw.choice(self.saved)
            loads = self.engine.optimizer if "param_groups" in state else self.engine
            loads.load_state_dict(state)
            self.return_to(plain)

    def resume_in_another_engine(self) -> None:
        """Train what is trained now, and a layer that may have been frozen."""
        state = self.engine.state_dict()
        self.engine.close()
        self.plain.model.get_submodule(self.draw.choice(LAYERS)).requires_grad_(True)
        trained = {n for n, p in self.plain.model.named_parameters() if p.requires_grad}
        self.engine = self.build(self.group, trained)
        self.engine.load_state_dict(state)
        self.forget_untrained()

    def grow(self) -> None:
        """Add a module, by way of another engine; its parameters have a group of their own."""
        if self.grown:
            return
        state = self.engine.state_dict()
        trained = self.trained()
        for net in self.nets:
            net.adapter = adapter()
        with pytest.raises(UsageError, match=r"'adapter.0.weight' was added"):
            self.engine.state_dict()
        self.engine.close()
        self.grown = True
        self.saved.clear()  # without the module
        added = {n: p for n, p in self.plain.model.named_parameters() if n.startswith("adapter")}
        self.plain.masters |= {n: nn.Parameter(padded(p)) for n, p in added.items()}
        masters = [self.plain.masters[n] for n in added]
        self.plain.optimizer.add_param_group({"params": masters, "weight_decay": 0.1})
        self.plain.model.adapter.to(self.dtype)
        self.engine = self.build(self.group, trained | added.keys())
        self.set_flags(self.engine.model)
        values = self.engine.full_parameters()
        self.engine.load_state_dict(state | {f"param.{n}": values[n] for n in added})

    def fail_in_forward(self) -> None:
        self._fail(self.draw.choice((AccidentError, KeyboardInterrupt)), in_backward=False)

    def fail_in_backward(self) -> None:
        """At the output of `second`, if a gradient comes there."""
        before = [self.plain.model.get_submodule(name) for name in LAYERS if name != "last"]
        if any(p.requires_grad for module in before for p in module.parameters()):
            self._fail(AccidentError, in_backward=True)

    def fail_within_a_step(self) -> None:
        """After a backward that succeeded; what is tried again alone is refused."""
        if not self.trains:
            return
        self.engine.backward(usual(self.engine.model, batch(6, self.rank)), last=False)
        loss = usual(self.engine.model, batch(6, self.rank))
        loss.register_hook(accident)
        with pytest.raises(AccidentError):
            self.engine.backward(loss, last=True)
        with pytest.raises(UsageError, match=r"discarded the 1 before it.*engine.zero_grad"):
            self.engine.backward(usual(self.engine.model, batch(6, self.rank)), last=True)
        self.engine.zero_grad()

    def differentiate_an_old_loss(self) -> None:
        if all(p.requires_grad for p in self.plain.model.parameters()):
            old = usual(self.engine.model, batch(5, self.rank))
            self.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                self.engine.backward(old, last=True)

    def _fail(self, error: type[BaseException], *, in_backward: bool) -> None:
        def act(*args: Any) -> None:
            raise error

        net = self.engine.model
        hook = (lambda m, a, out: out.register_hook(act) and None) if in_backward else act
        handle = net.second.register_forward_hook(hook)
        with pytest.raises(error):
            self.engine.backward(usual(net, batch(2, self.rank)), last=True)
        handle.remove()
        self.engine.zero_grad()


RULES = {rule: 1 for rule in vars(Both) if not rule.startswith("_")}
RULES |= {"step": 8, "freeze_or_thaw": 3, "edit_by_what_is_held": 2, "load": 2}
"""The rules, and how often each is drawn for another."""


def run(group: dist.ProcessGroup, row: dict[str, Any], seed: int, rules: Sequence[tuple[str, int]]) -> None:
    """Follow rules, each with a seed of what it chooses. AssertionError names the first that differs."""
    both = Both(group, row, seed)
    for rule, of_choices in rules:
        both.draw = random.Random(of_choices)
        try:
            getattr(both, rule)()
            both.compare(rule)
        except BaseException as error:
            raise AssertionError(f"{rule}, {row}") from error
    both.engine.close()
