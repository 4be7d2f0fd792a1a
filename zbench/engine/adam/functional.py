"""adam_step_: one update of one tensor as a plain function."""

from torch import Tensor

from zbench.engine.adam.checks import as_given
from zbench.engine.adam.contract import AdamTask, Hyper, Slot
from zbench.engine.adam.cuda import cuda_adam
from zbench.engine.adam.native import NativeAdam


def adam_step_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    bias_correction: bool = True,
    decoupled: bool = True,
    max_exp_avg_sq: Tensor | None = None,
    grad_scale: float = 1.0,
    param_out: Tensor | None = None,
) -> None:
    """Update param, exp_avg, exp_avg_sq (and max_exp_avg_sq: AMSGrad) in place, as torch's fused Adam(W).

    param: float32 master weights of any shape, contiguous; the others have its shape. exp_avg, exp_avg_sq,
    max_exp_avg_sq: float32 or bfloat16. grad: float32, bfloat16 or float16; it is multiplied once by
    float32(grad_scale), which unscales and clips. param_out: receives the new parameters in its own dtype.
    step: 1 for the first update. decoupled: AdamW, else Adam with L2 decay. All on one CPU or CUDA device.

    ValueError names the argument that is wrong; then nothing has been written.
    """
    tensors: dict[str, Tensor | None] = {
        "param": param,
        "grad": grad,
        "exp_avg": exp_avg,
        "exp_avg_sq": exp_avg_sq,
    }
    tensors |= {"max_exp_avg_sq": max_exp_avg_sq, "param_out": param_out}
    flat = {name: _flat(name, tensor, param) for name, tensor in tensors.items() if tensor is not None}
    slot = Slot(flat["param"], flat["exp_avg"], flat["exp_avg_sq"], flat.get("max_exp_avg_sq"))
    hyper = Hyper(lr, betas[0], betas[1], eps, weight_decay, bias_correction, decoupled)
    task = AdamTask(slot, flat["grad"], step, hyper, param_out=flat.get("param_out"))
    backend = cuda_adam() if param.is_cuda else NativeAdam()
    try:
        backend.update([task], grad_scale=grad_scale)
    except ValueError as error:
        raise ValueError(as_given(str(error))) from None


def _flat(name: str, tensor: Tensor, param: Tensor) -> Tensor:
    if tensor.shape != param.shape:
        raise ValueError(f"{name}: expected param's shape {list(param.shape)}, got {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()}")
    return tensor.detach().view(-1)
