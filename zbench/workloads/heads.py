"""Losses of transformers' models by their head, on a batch of tokens and targets."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from zbench.workloads.custom import LossFunction, language_model_loss
from zbench.workloads.workload import Batch

CAUSAL = "AutoModelForCausalLM"


def _classes(model: nn.Module, batch: Batch) -> Tensor:
    """Return a class for each token, from its target."""
    config: Any = model.config
    return batch[1] % int(config.num_labels)


def _sequence_classification(model: nn.Module, batch: Batch) -> Any:
    return model(input_ids=batch[0], labels=_classes(model, batch)[:, 0])


def _token_classification(model: nn.Module, batch: Batch) -> Any:
    return model(input_ids=batch[0], labels=_classes(model, batch))


def _question_answering(model: nn.Module, batch: Batch) -> Any:
    ends = batch[1][:, :2] % batch[0].shape[1]
    return model(input_ids=batch[0], start_positions=ends[:, 0], end_positions=ends[:, 1])


_LOSSES: Mapping[str, Callable[[nn.Module, Batch], Any]] = {
    "AutoModelForSequenceClassification": _sequence_classification,
    "AutoModelForTokenClassification": _token_classification,
    "AutoModelForQuestionAnswering": _question_answering,
}


def loss_of(head: str) -> LossFunction:
    """Return the function that computes the loss of a model with this head; tokens are labels elsewhere."""
    return _LOSSES.get(head, language_model_loss)
