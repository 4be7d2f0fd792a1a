"""Builds the gradients: the memory of buckets and of their rank sums, and how they are reduced."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from zbench.engine.assembly.settings import DTYPES
from zbench.engine.assembly.stages import accumulated_as, sums_memory
from zbench.engine.gradients.bucket import Buckets
from zbench.engine.gradients.gradients import Accumulate, Gradients
from zbench.engine.gradients.storage import (
    BucketMemory,
    FromPool,
    HostAccumulation,
    KeptBuffer,
    RankSums,
    SendingMemory,
)
from zbench.engine.memory.buffers import MemoryLayout
from zbench.engine.memory.kinds import DeviceMemory
from zbench.engine.parameters.base import ParamInfo
from zbench.engine.partition import Bucket
from zbench.engine.protocols import Collectives, HoldsBytes
from zbench.engine.shard_layout import ShardLayout
from zbench.engine.transport.buffers import Loan, ScratchPool
from zbench.engine.transport.choose import Transport
from zbench.spec.engine import EngineSpec


class InSums:
    """Lends the rank sums themselves: a reduction reads and writes the same memory."""

    def __init__(self, sums: RankSums) -> None:
        self._sums = sums

    def lend(self, place: Bucket, gradient: Tensor | None = None) -> Loan:
        return Loan(self._sums.sums.run(place.start, place.length))


class GradientBuilder:
    """Chooses where gradients are added up, written, sent from and reduced.

    dtypes: that of each dtype group. in_flight: the most elements that are reduced at once. A compiled step
    frees all memory of gradients when it ends.
    """

    def __init__(
        self,
        spec: EngineSpec,
        shard: ShardLayout,
        memory_layout: MemoryLayout,
        device: torch.device,
        dtypes: Sequence[torch.dtype],
        collectives: Collectives,
        in_flight: int,
    ) -> None:
        self.spec, self.shard, self.device, self.collectives = spec, shard, device, collectives
        self._dtypes = dtypes
        self._in_flight = in_flight
        self._compiled = spec.compile != "off"
        self._alone = collectives.world_size == 1  # nothing is sent
        sent = DTYPES[spec.communication_dtype] if spec.communication_dtype and not self._alone else None
        self._accumulation, self._communication = DTYPES[spec.grad_accum_dtype], sent
        lasts = sums_memory(spec, collectives.shards)
        self.sums = RankSums(shard, memory_layout, device, collectives, self._accumulation, lasts)
        self._writable = self.sums.is_near and not self._compiled
        self._pools = [ScratchPool(device)]
        self._kept: list[HoldsBytes] = []
        self._sends = self._lender([sent or dtype for dtype in dtypes])

    def build(self, model: nn.Module, param_infos: Sequence[ParamInfo], transport: Transport) -> Gradients:
        """Return the gradients of `param_infos`, the trained parameters of `model`."""
        spec = self.spec
        polls = spec.offload_schedule == "speculative" or bool(spec.leaf_modules)
        buckets = Buckets(self.collectives, self.sums, in_flight=self._in_flight, polls=polls)
        accumulate = accumulated_as(spec)
        if self._alone and not self._compiled:  # both orders of addition are the same: add where sums are
            accumulate = Accumulate.REPLICATED if self.sums.is_near else Accumulate.SHARDED
        several, waits = self._several() if accumulate is Accumulate.REPLICATED else (None, False)
        memory = SendingMemory(self._once(accumulate), several, waits, self._pools, self._kept)
        if self._compiled:
            from zbench.engine.compiled.compile import (
                CompiledGradients,  # torch's compiler takes 2 s to import
            )

            return CompiledGradients(buckets, param_infos, memory, transport, model, spec.compile)
        return Gradients(buckets, param_infos, memory)

    def _once(self, accumulate: Accumulate) -> BucketMemory:
        """Return the memory of a backward that alone is reduced: that of its sums, where this saves a copy
        and they hold no sums of earlier backwards.
        """
        alone = self._alone and not self._compiled
        exact = set(self._sends.dtypes) <= {torch.float32} and accumulate is Accumulate.REPLICATED
        in_place = self._writable and (alone or (exact and self.shard.keeps_all))
        return BucketMemory(InSums(self.sums) if in_place else replace(self._sends, without_copy=not alone))

    def _several(self) -> tuple[BucketMemory, bool]:
        """Return the memory in which several backwards are added up, and whether the first one waits: on the
        device, or in offloaded memory where any of the sums lie there.
        """
        offloaded = [flat.memory for flat in self.sums.sums.flats if flat.memory.prefix]
        memory = offloaded[0] if offloaded else DeviceMemory(self.device)
        dtype, sent = self._accumulation, self._communication
        rounds = any(torch.promote_types(dtype, d) != dtype for d in self._dtypes)
        cast = None if sent in (None, dtype) else self._sends
        exact = dtype == torch.float32 and sent in (None, torch.float32)
        summed = self._lender([dtype] * len(self._dtypes))
        if memory.device.type != self.device.type:
            buffer = KeptBuffer(self.shard.layout.length, memory, dtype)
            far = HostAccumulation(buffer, self._lender(self._dtypes), summed, cast)
            self._kept += [buffer, far.host.staging]
            return far, rounds
        waits = not memory.prefix or rounds
        if self._compiled:
            self._pools.append(ScratchPool(memory.device, memory))
            summed = self._lender(summed.dtypes)
            return BucketMemory(summed, cast), waits
        if exact and self.shard.keeps_all and self._writable:
            return BucketMemory(InSums(self.sums)), waits
        buffer = KeptBuffer(self.shard.layout.length, memory, dtype)
        self._kept.append(buffer)
        return BucketMemory(buffer, cast), waits

    def _lender(self, dtypes: Sequence[torch.dtype]) -> FromPool:
        return FromPool(self.shard.layout, self._pools[-1], dtypes)
