"""A user's model as it is: its own loss and datasets; and the contract where it is not met."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.workloads.conftest import load
from zbench.errors import UsageError


@pytest.mark.parametrize(
    ("model", "dataset", "keys"),
    [
        ("mine:Plain", "mine:pairs", {"loss": "mine:loss"}),
        ("mine:Plain", "mine:loader", {"loss": "mine:loss"}),
        ("mine:Plain", "mine:Dicts", {"loss": "mine:dict_loss"}),
        ("mine:Named", "mine:Dicts", {}),
        ("mine:Output", "mine:pairs", {}),
    ],
)
def test_every_way_to_a_loss(base_dir: Path, model: str, dataset: str, keys: dict[str, str]) -> None:
    made = load(base_dir, model, dataset, **keys)
    net = made.make_model()
    batch = made.batch(0, 0, 0)
    loss = made.loss(net, batch)
    assert torch.equal(loss, torch.nn.functional.mse_loss(net.line(batch[0]), batch[1]))
    loss.backward()
    assert batch[0].shape == (4, 3)
    assert made.samples_per_micro_batch == 4


@pytest.mark.parametrize(
    ("model", "dataset", "keys", "tokens"),
    [
        ("mine:Predicts", None, {"sequence_length": 5}, 4 * 5),
        ("mine:Counts", None, {}, 7),
        ("mine:Read", "mine:Ids", {}, 4 * 3),
        ("mine:Regression", None, {}, None),
    ],
)
def test_tokens_are_counted_only_where_the_workload_defines_them(
    base_dir: Path, model: str, dataset: str | None, keys: dict[str, object], tokens: int | None
) -> None:
    made = load(base_dir, model, dataset, **keys)
    batch = made.batch(0, 0, 0)
    assert (made.count_tokens is not None) == (tokens is not None)
    assert made.size(batch) == (tokens or sum(tensor.numel() for tensor in batch))


@pytest.mark.parametrize(
    ("model", "dataset", "weight"),
    [("mine:Counts", None, 7), ("mine:Reads", "mine:Labelled", 8), ("mine:Read", "mine:Ids", 12)],
)
def test_a_loss_counts_by_labels_or_else_by_tokens(
    base_dir: Path, model: str, dataset: str | None, weight: int
) -> None:
    made = load(base_dir, model, dataset, loss_weighting="tokens")
    assert made.count_weight is not None
    assert made.count_weight(made.batch(0, 0, 0)) == weight
    assert made.loss_weights(0, 2) == [[1.0, 1.0]]
    assert load(base_dir, model, dataset).count_weight is None


def test_samples_follow_from_the_seed_and_a_loader_collates(base_dir: Path) -> None:
    made = load(base_dir, "mine:Plain", "mine:loader", loss="mine:loss")
    one, again, other = (made.data.draw(seed, 2) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    assert bool((one[0] % 2 == 0).all()), "by its own collate_fn"


def test_other_contents_have_another_fingerprint(base_dir: Path) -> None:
    same = [load(base_dir, "mine:Plain", "mine:pairs", loss="mine:loss").data.fingerprint for _ in range(2)]
    other = load(base_dir, "mine:Plain", "mine:Dicts", loss="mine:dict_loss").data.fingerprint
    assert same[0] == same[1]
    assert re.fullmatch("dataset-10-[0-9a-f]{16}", same[0])
    sys.modules["mine"].X.add_(1)
    changed = load(base_dir, "mine:Plain", "mine:Dicts", loss="mine:dict_loss").data.fingerprint
    assert changed != other


@pytest.mark.parametrize(
    ("model", "dataset", "keys", "message"),
    [
        ("mine:Plain", None, {}, r"Plain\.forward\(x\) does not take this micro-batch \(2 tensors\)"),
        ("mine:Plain", "mine:Dicts", {}, r"does not take this micro-batch \(x, y\)"),
        ("mine:Plain", "mine:Stream", {}, "of which no sample can be chosen"),
        ("mine:Plain", "mine:Words", {}, "expected samples that collate to"),
        ("mine:Plain", "mine:empty", {}, "returned an empty TensorDataset"),
        ("mine:Plain", "mine:pairs", {"loss": "mine:X"}, "not callable"),
        ("no_such_module:Model", None, {}, "cannot load 'no_such_module:Model'"),
        ("mine:X", None, {}, "is of type Tensor, not callable"),
        (
            "mine:lazy",
            None,
            {},
            r"without a shape \(line\.weight\): call the model once on a batch",
        ),
        ("mine:Predicts", None, {"options": {"depth": 3}}, "unexpected keyword argument 'depth'"),
        ("mine:Predicts", None, {"preset": "nano"}, "workload.preset applies to the built-in models"),
        ("mlp", None, {"loss_chunks": 2}, "loss_chunks is for the language models"),
        ("mine:Regression", None, {"loss_weighting": "tokens"}, r"give the model count_tokens\(batch\)"),
        ("gpt", "mine:pairs", {}, "data.dataset is for a model of your own"),
    ],
)
def test_what_does_not_fit_is_refused(
    base_dir: Path, model: str, dataset: str | None, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load(base_dir, model, dataset, **keys)


def test_a_model_may_count_its_own_operations(base_dir: Path) -> None:
    made = load(base_dir, "mine:Predicts", options={"width": 16}, sequence_length=5)
    model = made.make_model()
    assert model.get_parameter("embed.weight").shape == (256, 16)
    assert made.loss(model, made.batch(0, 0, 0)).ndim == 0
    assert made.flops_per_micro_batch == 3 * 2 * 4 * 5 * 16 * 256
    assert load(base_dir, "mine:CountsItself", sequence_length=5).flops_per_micro_batch == 6.0 * 4 * 5


def test_blocks_of_ones_own_are_computed_again_where_asked(base_dir: Path) -> None:
    for keys, calls in (({}, 1), ({"activation_checkpointing": True}, 2)):
        made = load(base_dir, "mine:Blocks", **keys)
        model = made.make_model()
        count: list[int] = []
        model.line[0].register_forward_pre_hook(lambda *_, count=count: count.append(1))
        made.loss(model, made.batch(0, 0, 0)).backward()
        assert len(count) == calls


def test_a_seed_stands_for_the_same_numbers_in_every_version(base_dir: Path) -> None:
    made = load(base_dir, "mine:Draws", "mine:drawn", loss="mine:loss")
    assert made.make_model().drawn == 0.8507603184669604
    assert made.batch(0, 0, 0)[0].unique().tolist() == [0.852255625729706]
    assert made.micro_seed(0, 0, 0) == 5809880761037817570


def test_the_folder_of_the_sweep_is_searched_first(base_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base_dir / "elsewhere").mkdir()
    (base_dir / "elsewhere" / "mine.py").write_text("raise RuntimeError('of another folder')")
    monkeypatch.chdir(base_dir / "elsewhere")
    assert load(base_dir, "mine:Regression").make_model().line.in_features == 3


def test_only_a_part_kept_in_eval_mode_stays_so(base_dir: Path) -> None:
    assert all(module.training for module in load(base_dir, "mine:pretrained").make_model().modules())
    frozen = load(base_dir, "mine:frozen_part").make_model()
    modes = {name: module.training for name, module in frozen.named_modules()}
    assert modes == {"": True, "line": True, "kept": False}


def test_a_model_may_make_its_own_batches(base_dir: Path) -> None:
    made = load(base_dir, "mine:Regression")
    (batch,) = made.batch(2, 0, 0)
    assert batch.shape == (4, 3)
    assert torch.equal(batch, made.batch(2, 0, 0)[0])
    assert not torch.equal(batch, made.batch(3, 0, 0)[0])
    assert made.loss(made.make_model().to(torch.bfloat16), (batch,)).dtype == torch.bfloat16


def test_the_contract_is_shown_where_it_is_not_met(base_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"loss = function\(model, batch\)"):
        load(base_dir, "mine:Plain")
    made = load(base_dir, "mine:Plain", "mine:pairs", loss="mine:loss")
    unfit = dataclasses.replace(made, compute_loss=lambda model, batch: model(batch[0]))
    text = r"expected a scalar loss, got a tensor of shape \(4, 1\)(.|\n)*make_batch"
    with pytest.raises(UsageError, match=text):
        unfit.loss(unfit.make_model(), unfit.batch(0, 0, 0))
    taken_otherwise = load(base_dir, "mine:Plain", "mine:pairs", loss="mine:output_loss")
    text = r"output_loss\(model: Plain, batch: tuple\) failed with TypeError(.|\n)*function\(model, batch\)"
    with pytest.raises(UsageError, match=text):
        taken_otherwise.loss(made.make_model(), made.batch(0, 0, 0))
