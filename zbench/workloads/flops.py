"""Floating-point operations of one micro-batch's forward and backward. A multiply-add counts as two."""

import itertools
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from zbench.spec.shapes import GptShape, MlpShape
from zbench.workloads.workload import Workload

_FORWARD_AND_BACKWARD = 3  # backward does each product twice: for the weights and for the inputs


def gpt_flops(shape: GptShape, *, sequence_length: int, tokens: int) -> float:
    """Return 6 N per token for the N weights of matrix products, plus attention's two products over the
    sequence.

    Attention is counted whole, not halved for its causal mask, as is usual when utilisation is quoted
    (Chowdhery et al., PaLM, https://arxiv.org/abs/2204.02311, appendix B).
    """
    weights = shape.layers * 12 * shape.width**2 + shape.vocabulary * shape.width
    attention = 2 * shape.layers * shape.width * sequence_length
    return float(2.0 * _FORWARD_AND_BACKWARD * tokens * (weights + attention))


def mlp_flops(shape: MlpShape, *, sequence_length: int, samples: int) -> float:
    """Return 6 per weight and sample, less the first layer's gradient of its input, which nobody needs."""
    widths = [sequence_length, *[shape.hidden] * (shape.layers - 1), shape.vocabulary]
    products = [a * b for a, b in itertools.pairwise(widths)]
    return 2.0 * samples * (_FORWARD_AND_BACKWARD * sum(products) - products[0])


def language_model_flops(model: nn.Module, *, sequence_length: int, tokens: int) -> float:
    """Return what `gpt_flops` counts, for a transformers model: its matrices, and attention.

    An embedding is looked up and not multiplied, unless it is the output projection, too.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    looked_up = {
        id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and m.weight is not head.weight
    }
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1 and id(p) not in looked_up)
    config: Any = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * width * sequence_length
    return float(2.0 * _FORWARD_AND_BACKWARD * tokens * (weights + attention))


def counted_flops(workload: Workload) -> float | None:
    """Return what torch counts for one forward and backward of any model, run without data, or None.

    Attention is taken in its plain form, because the fused kernels of the CPU are not all counted.
    """
    batch = workload.batch(0, 0, 0)
    fake, plain = FakeTensorMode(allow_non_fake_inputs=True), sdpa_kernel(SDPBackend.MATH)
    try:
        with fake, plain, FlopCounterMode(display=False) as counter:
            loss = workload.loss(workload.factory(), tuple(fake.from_tensor(x) for x in batch))
            torch.autograd.backward(loss)
    except Exception:  # any model may do what cannot be simulated; the figure is a convenience
        return None
    return float(counter.get_total_flops()) or None
