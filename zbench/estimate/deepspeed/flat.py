"""DeepSpeed's stages 0 to 2 by rules: flat parameters, buckets, and parts of gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zbench.estimate.deepspeed.engine import RuledEngine
from zbench.estimate.ledger import BUCKETS, GRADIENTS, MASTER, PARAMETERS

_MOST_AT_ONCE = 500_000_000
"""engine.py: elements of one reduction at stage 0."""


class Replicated(RuledEngine):
    """Stage 0 (engine.py, `buffered_allreduce_fallback`): a flat copy of all gradients at the boundary."""

    def finish_backward(self) -> None:
        if self.is_boundary:
            self.reduce([p.grad for group in self.groups for p in group if p.grad is not None])

    def reduce(self, gradients: Sequence[Tensor]) -> None:
        """Reduce gradients in runs of _MOST_AT_ONCE elements, or of one gradient."""
        run: list[Tensor] = []
        for gradient in gradients:
            run.append(gradient)
            if sum(g.numel() for g in run) > _MOST_AT_ONCE or gradient is gradients[-1]:
                whole = self.call(torch.cat([g.reshape(-1) for g in run]), BUCKETS)
                sent = whole.to(self.keys.reduced)
                self.call(sent, BUCKETS)
                dist.all_reduce(sent)
                sent.mul_(1.0)
                del whole, sent
                run = []

    def update(self) -> None:
        for group, parameters in enumerate(self.groups):
            for parameter in parameters:
                if parameter.grad is not None:
                    self.adam(id(parameter), group, parameter.data, parameter.grad)


@dataclass(slots=True)
class FlatGroup:
    """The parameters of one optimizer group end to end, and this rank's part (zero/stage_1_and_2.py).

    size: elements of a part. starts: parameter -> where it begins. here: parameter -> how many of its
    elements are in the part. first, master: the part in the model's dtype and in float32.
    """

    parameters: list[nn.Parameter]
    whole: Tensor
    size: int
    starts: dict[nn.Parameter, int]
    here: dict[nn.Parameter, int]
    part: Tensor
    master: Tensor

    @classmethod
    def of(cls, engine: RuledEngine, parameters: list[nn.Parameter]) -> "FlatGroup":
        """Move the parameters to flat memory that is padded to two elements a rank."""
        keys = engine.keys
        ends = list(accumulate((p.numel() for p in parameters), initial=0))
        size = -(-ends[-1] // (2 * engine.world)) * 2
        whole = engine.new(size * engine.world, keys.dtype, PARAMETERS)
        first = engine.rank * size
        starts = {}
        here = {}
        for parameter, (start, end) in zip(parameters, pairwise(ends), strict=True):
            parameter.data = whole[start:end].view(parameter.shape)
            starts[parameter] = start
            inside = min(end, first + size) - max(start, first)
            if inside > 0:
                here[parameter] = inside
        master = engine.new(size, torch.float32, MASTER, on_host=keys.offloads)
        return cls(parameters, whole, size, starts, here, whole[first : first + size], master)

    def gather(self) -> None:
        """Take the other ranks' parts."""
        self.part.copy_(self.master)
        dist.all_gather_into_tensor(self.whole, self.part)


class Bf16Optimizer(Replicated):
    """Stage 1 of a bfloat16 model that accumulates in float32 (bf16_optimizer.py): all gradients stay in
    float32, and those of the model until the step.
    """

    def prepare(self) -> None:
        self._flat = [FlatGroup.of(self, group) for group in self.groups]
        self._sums = [self.new(flat.whole.numel(), self.keys.accumulated, GRADIENTS) for flat in self._flat]

    def finish_backward(self) -> None:
        for parameter in (p for group in self.groups for p in group):
            if parameter.grad is not None:
                self.new(parameter.numel(), self.keys.accumulated)
        if self.is_boundary:
            for whole in self._sums:
                self.reduce([whole])

    def update(self) -> None:
        for number, flat in enumerate(self._flat):
            start = self.rank * flat.size
            self.adam(number, number, flat.master, self._sums[number][start : start + flat.size])
            flat.gather()


class Partitioned(RuledEngine):
    """Stages 1 and 2 (zero/stage_1_and_2.py)."""

    def prepare(self) -> None:
        keys = self.keys
        self._flat = [FlatGroup.of(self, group) for group in self.groups]
        self._of = {p: flat for flat in self._flat for p in flat.parameters}
        self._stands_apart = keys.stage == 1 and keys.dtype != keys.accumulated
        """`use_grad_accum_attribute`: sums of gradients beside the parameters' own."""
        self._is_compact = keys.dtype != keys.accumulated == torch.float32
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._parts: dict[int, Tensor] = {}
        self._averaged: list[Tensor] = []
        self._queue: list[nn.Parameter] = []
        self._buffers: list[Tensor] = []
        self._own: Tensor | None = None
        self._rounds = 0
        """How often in a step there were buckets: at stage 1 once, and they stay."""
        if keys.offloads:
            most = max(p.numel() for p in self._of)
            for flat in self._flat:
                for dtype, category in ((keys.dtype, PARAMETERS), (torch.float32, GRADIENTS)):
                    self._buffers.append(self.new(flat.size, dtype, category, on_host=True))
            self._buffers.append(self.new(most, keys.dtype, BUCKETS, on_host=True))
            self._buffers.append(self.new(most, keys.dtype, BUCKETS))
        self._states, self._buffers = self._buffers, []
        self._on_host: dict[nn.Parameter, Tensor] = {}
        self.listen(self.take)

    def _gradient(self, parameter: nn.Parameter) -> Tensor | None:
        return self._sums.get(parameter) if self._stands_apart else parameter.grad

    def _set(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        if not self._stands_apart:
            parameter.grad = gradient
        elif gradient is None:
            self._sums.pop(parameter, None)
        else:
            self._sums[parameter] = gradient

    @torch.no_grad()
    def take(self, parameter: nn.Parameter) -> None:
        """`process_gradients`: one or two buckets exist from the first gradient on."""
        keys = self.keys
        if not self._buffers:
            dtype = keys.accumulated if self._stands_apart else keys.dtype
            self._buffers = [self.new(keys.bucket, dtype, BUCKETS) for _ in range(1 + keys.overlap)]
            self._rounds += 1
        if self._stands_apart and parameter.grad is not None:
            gradient = self.call(parameter.grad.to(keys.accumulated), GRADIENTS)
            self._sums[parameter] = (
                self._sums[parameter].add_(gradient) if parameter in self._sums else gradient
            )
            parameter.grad = None
            del gradient
        if keys.stage == 2 or (keys.overlap and self.is_boundary):
            self._fill(parameter)

    def _fill(self, parameter: nn.Parameter) -> None:
        """`reduce_independent_p_g_buckets_and_remove_grads`: copy the gradient to the bucket."""
        filled = sum(p.numel() for p in self._queue)
        if filled + parameter.numel() > self.keys.bucket:
            self._reduce()
            filled = 0
        gradient = self._gradient(parameter)
        assert gradient is not None
        if parameter.numel() <= self.keys.bucket:
            place = self._buffers[0][filled : filled + parameter.numel()].view(parameter.shape)
            self._set(parameter, place.copy_(gradient))
        elif self.keys.offloads:
            self._set(parameter, self.call(gradient.clone(), GRADIENTS))
        self._queue.append(parameter)

    def _reduce(self) -> None:
        """`reduce_ipg_grads`: reduce a flat copy of the bucket; keep what is of this rank's part."""
        elements = sum(p.numel() for p in self._queue)
        for size in self._slices(elements):
            whole = self.new(size, self._buffers[0].dtype, BUCKETS)
            sent = self.call(whole.to(self.keys.reduced), BUCKETS)
            dist.all_reduce(sent)
            if sent is not whole:
                whole.copy_(sent)
            del whole, sent
        if self._is_compact:
            for flat in self._flat:
                self._part(flat)
        for parameter in self._queue:
            if parameter in self._of[parameter].here:
                self._keep(parameter)
            elif self.keys.stage == 2:
                self._set(parameter, None)
        self._queue.clear()

    def _slices(self, elements: int) -> list[int]:
        """`allreduce_and_scatter`: a parameter above a bucket is sent by the ranks' parts of it."""
        if elements <= self.keys.bucket:
            return [elements] if elements else []
        flat = self._of[self._queue[0]]
        start = flat.starts[self._queue[0]]
        edges = [
            start,
            *range((start // flat.size + 1) * flat.size, start + elements, flat.size),
            start + elements,
        ]
        sizes, run = [], 0
        for a, b in pairwise(edges):
            run += b - a
            if run > self.keys.bucket or b == edges[-1]:
                sizes.append(run)
                run = 0
        return sizes

    def _part(self, flat: FlatGroup) -> Tensor:
        """`_build_compact_grad_partition_buffer`: the part's sums, until the step."""
        number = self._flat.index(flat)
        if number not in self._parts:
            self._parts[number] = self.new(flat.size, self.keys.accumulated, GRADIENTS)
        return self._parts[number]

    def _keep(self, parameter: nn.Parameter) -> None:
        """`copy_grads_in_partition`."""
        gradient = self._gradient(parameter)
        size = self._of[parameter].here[parameter]
        assert gradient is not None
        if self.keys.offloads:
            if not self._is_compact and (self._rounds > 1 or not self.is_boundary):
                if parameter not in self._on_host:
                    self._on_host[parameter] = self.new(
                        parameter.numel(), self.keys.dtype, GRADIENTS, on_host=True
                    )
                self._on_host[parameter].copy_(gradient.reshape(-1))
            if self.is_boundary:
                self.new(size, torch.float64)  # of the norm
                if not self._is_compact and gradient.dtype != torch.float32:
                    self.new(size, torch.float32)
                self._set(parameter, None)
        elif self._is_compact:
            if self._stands_apart:
                self._set(parameter, None)
        else:
            if self._own is None:
                length = sum(p.numel() for flat in self._flat for p in flat.here)
                self._own = self.new(length, self.keys.dtype, GRADIENTS)
            place = self._own[: parameter.numel()].view(parameter.shape)
            self._set(parameter, place.copy_(gradient))

    def finish_backward(self) -> None:
        """`independent_gradient_partition_epilogue`: at stage 1 at the boundary only."""
        if self.keys.stage == 1 and not self.is_boundary:
            return
        if self.keys.stage == 1 and not self.keys.overlap:
            for parameter in self._of:
                if self._gradient(parameter) is not None:
                    self._fill(parameter)
        self._reduce()
        if not self.keys.offloads and not self._is_compact and not self._averaged:
            self._averaged = [g for flat in self._flat for p in flat.here if (g := p.grad) is not None]
        self._own, self._buffers = None, []
        for parameter in self._of:
            parameter.grad = None

    def update(self) -> None:
        """`step`: norms in float64, a flat copy of the part's gradients, Adam, and an all-gather."""
        self._rounds = 0
        for size in [gradient.numel() for gradient in self._averaged]:
            self.new(size, torch.float64)
        for number, flat in enumerate(self._flat):
            if self.keys.offloads:
                self._parts.pop(number, None)
                self.adam(number, number, flat.master, self._states[2 * number + 1])
            else:
                part = self._parts.pop(number, None)
                if part is None:
                    part = self.new(flat.size, self.keys.accumulated, GRADIENTS)
                whole = self.call(part.to(torch.float32), GRADIENTS)
                del part
                if number == len(self._flat) - 1:
                    self._averaged = []
                self.adam(number, number, flat.master, whole)
                del whole
            flat.gather()
