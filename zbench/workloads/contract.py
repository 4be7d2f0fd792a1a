"""What zbench asks of a model of one's own, in the words that a mistake is answered with."""

from torch import Tensor

from zbench.errors import UsageError

CONTRACT = """a model of your own is trained like this:
    model = callable(**options)  # `model: module:callable`; returns a torch.nn.Module
    batch = model.make_batch(generator, micro_batch_size, sequence_length)  # a tuple of CPU tensors
        # optional; else `data: {dataset: module:callable}`, or (tokens, targets), each [B, T] int64
    loss = model(*batch)  # a scalar tensor, or an output that has `.loss`, as those of transformers
    loss = function(model, batch)  # instead, with `loss: module:function`, where forward returns no loss"""


def scalar_of(output: object) -> Tensor:
    """Return the scalar loss in what a model returned; UsageError with the contract where there is none."""
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    shown = loss if isinstance(loss, Tensor) else output
    found = f"a tensor of shape {tuple(shown.shape)}" if isinstance(shown, Tensor) else type(shown).__name__
    raise UsageError(f"workload.model: expected a scalar loss, got {found}; {CONTRACT}")
