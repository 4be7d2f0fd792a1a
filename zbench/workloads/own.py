"""Workloads whose model is not built in: `module:callable` and `hf:NAME_OR_PATH`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zbench.errors import UsageError, nearest
from zbench.spec import shapes
from zbench.spec.workload import WorkloadSpec
from zbench.workloads.checkpointing import Mode, checkpointed, context_of
from zbench.workloads.custom import (
    ModelMadeBatches,
    choose,
    chunked_language_model_loss,
    language_model_loss,
    load_callable,
    model_factory,
)
from zbench.workloads.data import BYTE_VOCABULARY, DatasetBatches, SyntheticTokens, TextBytes, token_data
from zbench.workloads.flops import counted_flops, language_model_flops
from zbench.workloads.heads import CAUSAL, loss_of
from zbench.workloads.workload import Batch, Data, Workload, micro_batches_per_draw

_LOSS = "expected module:callable, where callable(model, batch) returns the scalar loss"


def own_workload(spec: WorkloadSpec, *, seed: int, world_size: int, base_dir: Path) -> Workload:
    """Return the workload of a model that is not built in. UsageError if it cannot be built."""
    factory, vocabulary = _model(spec, base_dir)
    with torch.device("meta") if spec.model.startswith(shapes.PREFIX) else nullcontext():
        model = factory().to("meta")  # only to inspect it; uses no memory
    data = _data(spec, model, vocabulary, base_dir)
    names = getattr(data, "names", ())
    loss = load_callable(spec.loss, base_dir, key="workload.loss", expected=_LOSS) if spec.loss else None
    compute_loss = choose(model, data.draw(0, spec.micro_batch_size), names, loss)
    if spec.model.startswith(shapes.PREFIX) and compute_loss is language_model_loss:
        compute_loss = loss_of(_head(model.config))
    reads_text = compute_loss is language_model_loss
    if reads_text and spec.loss_chunks > 1:
        compute_loss = partial(chunked_language_model_loss, chunks=spec.loss_chunks)
    count_tokens = _token_counter(model, data, names, reads_text=reads_text)
    return Workload(
        factory,
        data,
        seed,
        world_size,
        spec.micro_batch_size,
        micro_batches_per_draw(data, spec.micro_batch_size, spec.micro_batches_of(world_size)),
        count_flops=_flops_counter(spec, model),
        compute_loss=compute_loss,
        count_tokens=count_tokens,
        count_weight=_weight_counter(spec, model, names, count_tokens),
    )


def _flops_counter(spec: WorkloadSpec, model: nn.Module) -> Callable[[Workload], float | None]:
    """Return the model's own `count_flops(micro_batch_size, sequence_length)`, or a counter for it."""
    counter = getattr(model, "count_flops", None)
    if counter is not None:
        return lambda _: counter(spec.micro_batch_size, spec.sequence_length)
    if not spec.model.startswith(shapes.PREFIX):
        return counted_flops

    return lambda workload: language_model_flops(  # fake tensors do not support transformers' masks
        model, sequence_length=spec.sequence_length, tokens=workload.size(workload.batch(0, 0, 0))
    )


def _model(spec: WorkloadSpec, base_dir: Path) -> tuple[Callable[[], nn.Module], int]:
    """Return the model's factory and the size of its vocabulary."""
    if spec.preset:
        raise UsageError(
            f"workload.preset applies to the built-in models; {spec.model} takes workload.options"
        )
    if spec.model.startswith(shapes.PREFIX):
        config = load_config(spec.model, spec.options, base_dir)
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and spec.sequence_length > longest:
            raise UsageError(
                f"workload.sequence_length: {spec.model} has {longest} positions, got {spec.sequence_length};"
                " shorten it, or set options: {max_position_embeddings: ...}"
            )
        _check_chunks(spec, config)
        factory = language_model_factory(config, activation_checkpointing=spec.activation_checkpointing)
        return factory, int(config.vocab_size)
    if spec.loss_chunks > 1:
        raise UsageError(f"workload.loss_chunks is for gpt and hf:; {spec.model} computes its own loss")
    make = model_factory(spec.model, spec.options, base_dir)
    mode, classes = spec.activation_checkpointing, spec.checkpointed_classes
    return (lambda: checkpointed(make(), mode, classes)), BYTE_VOCABULARY


def _check_chunks(spec: WorkloadSpec, config: Any) -> None:
    """UsageError if a chunked loss would not be the model's own, which changes logits or adds to its loss."""
    changing = ("final_logit_softcapping", "logits_scaling", "logit_scale", "output_router_logits")
    if spec.loss_chunks > 1 and _head(config) != CAUSAL:
        raise UsageError(f"workload.loss_chunks: {spec.model} is no causal language model; leave it out")
    changed = next((key for key in changing if getattr(config, key, None)), None)
    if spec.loss_chunks > 1 and changed is not None:
        raise UsageError(f"workload.loss_chunks: {spec.model} sets {changed}; leave loss_chunks out")


def _data(spec: WorkloadSpec, model: nn.Module, vocabulary: int, base_dir: Path) -> Data:
    if spec.data.dataset is not None:
        return DatasetBatches(spec.data.dataset, base_dir)
    make_batch = getattr(model, "make_batch", None)
    if make_batch is None or spec.data.text is not None:
        return token_data(spec, vocabulary, base_dir)
    return ModelMadeBatches(make_batch, sequence_length=spec.sequence_length)


def _token_counter(
    model: nn.Module, data: Data, names: Sequence[str], *, reads_text: bool
) -> Callable[[Batch], int] | None:
    """Return a function that counts a micro-batch's tokens; None if tokens are not known.

    Tokens are known by the model's own `count_tokens(batch)`, by token data, or by `input_ids` in a dict.
    """
    counter: Callable[[Any], int] | None = getattr(model, "count_tokens", None)
    if counter is not None:
        return lambda batch: counter(dict(zip(names, batch, strict=True)) if names else batch)
    if reads_text or isinstance(data, SyntheticTokens | TextBytes):
        return lambda batch: batch[0].numel()
    return (lambda batch: batch[names.index("input_ids")].numel()) if "input_ids" in names else None


def _weight_counter(
    spec: WorkloadSpec, model: nn.Module, names: Sequence[str], count_tokens: Callable[[Batch], int] | None
) -> Callable[[Batch], int] | None:
    """Return a function for the weight of a micro-batch's loss: its labels that count, or its tokens."""
    if spec.loss_weighting == "mean":
        return None
    if "labels" in names and not hasattr(model, "count_tokens"):
        return lambda batch: int((batch[names.index("labels")] != nn.CrossEntropyLoss().ignore_index).sum())
    if count_tokens is None:
        raise UsageError(
            f"workload.loss_weighting: nothing says what a token of {spec.model} is; give the model"
            " count_tokens(batch), or set loss_weighting: mean"
        )
    return count_tokens


def _config_of(kind: str, keys: Mapping[str, Any], message: str, remedy: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(kind, **keys)
    except (ArithmeticError, KeyError, ValueError, TypeError) as error:
        raise UsageError(f"{message} that transformers can use ({error}); {remedy}") from None


def _with_layers(written: dict[str, Any], config: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return a written configuration whose lists of something for each layer are as long as is chosen; where
    they would be too short, the architecture says what the layers are.
    """
    count = config.num_hidden_layers
    layers = chosen.get(type(config).attribute_map.get("num_hidden_layers", "num_hidden_layers"), count)
    lists = {key: value for key, value in written.items() if isinstance(value, list) and len(value) == count}
    rest = {key: value for key, value in written.items() if key not in lists}
    return rest | {key: value[:layers] for key, value in lists.items() if layers <= count}


def load_config(model: str, options: Mapping[str, Any], base_dir: Path) -> Any:
    """Return transformers' configuration with `options` set. UsageError for an unknown model or option."""
    problem = shapes.mistake(model, base_dir)
    if problem:
        raise UsageError(f"workload.model: {problem}")
    config_of_file = shapes.configuration(model, base_dir)
    written = {key: value for key, value in config_of_file.items() if key not in shapes.DTYPES}
    kind = written.pop("model_type")
    config = _config_of(kind, written, f"workload.model: {model}: not a configuration", "name another")
    aliases = type(config).attribute_map
    keys = [*config.to_dict(), *aliases]
    for key in options:
        if key not in keys:
            raise UsageError(f"workload.options: {model} has no {key!r}{nearest(key, keys)}")
    if options:
        chosen = {aliases.get(key, key): value for key, value in options.items()}
        keys_of_both = _with_layers(written, config, chosen) | chosen
        config = _config_of(kind, keys_of_both, f"workload.options: {model} has no such form", "correct them")
    config.use_cache = False
    return config


def _head(config: Any) -> str:
    return shapes.head_of({"architectures": getattr(config, "architectures", None)})


def language_model_factory(config: Any, *, activation_checkpointing: Mode) -> Callable[[], nn.Module]:
    """Return the factory of a model with random float32 weights and the head of its `architectures`."""

    def make() -> nn.Module:
        import transformers

        try:
            model: nn.Module = getattr(transformers, _head(config)).from_config(config)
            if any(p.dtype != torch.float32 for p in model.parameters()):
                model = model.float()
        except (ValueError, KeyError) as error:
            raise UsageError(
                f"workload.model: transformers builds no {_head(config)} of {type(config).__name__} ({error})"
            ) from None
        if activation_checkpointing:
            context = context_of(activation_checkpointing)
            options = {"use_reentrant": False} | ({} if context is None else {"context_fn": context})
            model.gradient_checkpointing_enable(options)  # type: ignore[operator]
        return model

    return make
