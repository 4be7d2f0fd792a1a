"""The policies of a step, which a rebuilt core keeps."""

from collections.abc import Callable
from dataclasses import dataclass

from zbench.engine.optimizer.offload_ratio import OffloadRatio
from zbench.engine.policies import AccumulationPolicy, Clip, LossScaling, gradient_scale
from zbench.engine.protocols import Collectives


@dataclass(frozen=True, slots=True)
class Policies:
    """Choices that a rebuilt core keeps."""

    accumulation: AccumulationPolicy
    clip: Clip
    scaling: LossScaling
    share: OffloadRatio
    collectives: Collectives
    close: Callable[[], None]

    def unclipped_scale(self) -> float:
        """Return the factor that averages and unscales the gradients of a step that starts now."""
        return self.scale(self.scaling.scale, 1.0)

    def scale(self, loss_scale: float, clip: float) -> float:
        """Return the one factor that averages, unscales and clips summed gradients."""
        world, steps = self.collectives.world_size, self.accumulation.divisor
        return gradient_scale(world_size=world, accumulation=steps, loss_scale=loss_scale, clip=clip)
