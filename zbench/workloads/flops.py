"""FLOPs of one micro-batch's forward and backward. A multiply-add counts as two."""

import itertools
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from zbench.spec.shapes import GptShape, MlpShape
from zbench.workloads.workload import Workload

_FORWARD_AND_BACKWARD = 3  # backward has two products for each: the weights' and the inputs' gradients


def gpt_flops(shape: GptShape, *, sequence_length: int, tokens: int) -> float:
    """Return 6 N FLOPs per token for the N weights of matrix products, plus attention's two products.

    The causal mask does not halve attention, as is usual for model FLOPs utilization (Chowdhery et al., PaLM,
    https://arxiv.org/abs/2204.02311, appendix B).
    """
    weights = shape.layers * 12 * shape.width**2 + shape.vocabulary * shape.width
    attention = 2 * shape.layers * shape.width * sequence_length
    return float(2.0 * _FORWARD_AND_BACKWARD * tokens * (weights + attention))


def mlp_flops(shape: MlpShape, *, sequence_length: int, samples: int) -> float:
    """Return 6 FLOPs per weight and sample, without the gradient of the first layer's input."""
    widths = [sequence_length, *[shape.hidden] * (shape.layers - 1), shape.vocabulary]
    products = [a * b for a, b in itertools.pairwise(widths)]
    return 2.0 * samples * (_FORWARD_AND_BACKWARD * sum(products) - products[0])


def language_model_flops(model: nn.Module, *, sequence_length: int, tokens: int) -> float:
    """Return the FLOPs that `gpt_flops` counts, for a transformers model.

    An embedding is not a matrix product, unless its weight is also the output projection.
    """
    head = getattr(model.get_output_embeddings(), "weight", None)  # type: ignore[operator]
    looked_up = {
        id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and m.weight is not head
    }
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1 and id(p) not in looked_up)
    config: Any = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * width * sequence_length
    return float(2.0 * _FORWARD_AND_BACKWARD * tokens * (weights + attention))


def counted_flops(workload: Workload) -> float | None:
    """Return torch's FLOP count of one forward and backward on fake tensors; None if that fails.

    Attention uses the unfused implementation, because torch does not count every fused CPU kernel.
    """
    batch = workload.batch(0, 0, 0)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    plain = sdpa_kernel(SDPBackend.MATH)
    try:
        with fake, plain, FlopCounterMode(display=False) as counter:
            loss = workload.loss(workload.factory(), tuple(fake.from_tensor(x) for x in batch))
            torch.autograd.backward(loss)
    except Exception:  # a model may do what fake tensors do not support; the count is optional
        return None
    return float(counter.get_total_flops()) or None
