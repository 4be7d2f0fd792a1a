"""Random inputs of the zoo's models, their table, and training runs drawn over it: the sample on which a
verdict's limits are tested.

The zoo is small models, each with its batches and its loss. A draw chooses a model, hyperparameters as people
set them, 2 to 4 ranks, and 5 to 300 steps. The distribution was fixed before the limits; a seed gives the
same training runs everywhere. Inputs are float32, so that no draw depends on a dtype.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Return normally distributed numbers, float32."""
    return torch.randn(shape, generator=generator)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Return numbers from [0, 1), float32."""
    return torch.rand(shape, generator=generator)


def whole(generator: torch.Generator, below: int, *shape: int) -> Tensor:
    """Return whole numbers from [0, below), int64."""
    return torch.randint(below, shape, generator=generator)


def skewed(generator: torch.Generator, below: int, *shape: int) -> Tensor:
    """Return whole numbers from [0, below), int64; small numbers are frequent, as words of a text are."""
    return (uniform(generator, *shape).pow(3) * below).long().clamp(max=below - 1)


def tokens(generator: torch.Generator, vocabulary: int, batch_size: int, length: int) -> Tensor:
    """Return sequences int64 [batch_size, length]: a token mostly follows from the one before it."""
    steps = skewed(generator, vocabulary, batch_size, length)
    surprising = uniform(generator, batch_size, length) < 0.3
    result = [steps[:, 0]]
    for position in range(1, length):
        follower = (3 * result[-1] + 1) % vocabulary
        result.append(torch.where(surprising[:, position], steps[:, position], follower))
    return torch.stack(result, dim=1)


def labelled_images(
    generator: torch.Generator, batch_size: int, classes: int, channels: int, side: int
) -> tuple[Tensor, Tensor]:
    """Return images [batch_size, channels, side, side], waves plus noise, and labels [batch_size]:
    the frequency.
    """
    labels = whole(generator, classes, batch_size)
    line = torch.linspace(0, 3.1, side)
    wave = torch.sin((labels + 1).view(-1, 1, 1) * line.view(1, -1, 1) + line.view(1, 1, -1))
    noise = normal(generator, batch_size, channels, side, side)
    return wave.unsqueeze(1) + 0.7 * noise, labels


def labelled_masks(generator: torch.Generator, batch_size: int, side: int) -> tuple[Tensor, Tensor]:
    """Return images [batch_size, 1, side, side] and masks [batch_size, side, side], int64:
    a noisy disc is 1.
    """
    line = torch.linspace(-1, 1, side)
    centres = uniform(generator, batch_size, 2, 1, 1) - 0.5
    radii = 0.3 + 0.5 * uniform(generator, batch_size, 1, 1)
    distances = (line.view(1, -1, 1) - centres[:, 0]).square() + (
        line.view(1, 1, -1) - centres[:, 1]
    ).square()
    masks = distances.sqrt() < radii
    images = masks.float() + 0.5 * normal(generator, batch_size, side, side)
    return images.unsqueeze(1), masks.long()


def noise_like(tensor: Tensor) -> Tensor:
    """Return normal noise in the shape and dtype of a tensor, from the global generator."""
    return torch.randn(tensor.shape, device=tensor.device).to(tensor.dtype)


def uniform_like(tensor: Tensor) -> Tensor:
    """Return uniform noise, inside (0, 1), in the shape and dtype of a tensor, from the global generator."""
    return torch.rand(tensor.shape, device=tensor.device).clamp(1e-3, 1 - 4e-3).to(tensor.dtype)


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers of these widths, with activations between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One model.

    name: unique. model: `module:attribute`, as a workload has it. options: its keyword arguments.
    bfloat16: forward and backward work after `module.to(torch.bfloat16)` on a CPU.
    """

    name: str
    kind: str
    model: str
    options: Mapping[str, object]
    bfloat16: bool


# (kind, file) -> its classes, in the order of the file
_CLASSES = {
    ("convolution", "convolution"): (
        "BatchNormCnn InstanceNormCnn GroupNormCnn LayerNormCnn WeightNormCnn SpectralNormCnn PlainCnn"
        " LocalResponseCnn WeightStandardizedCnn Cnn3d DilatedCnn TextCnn"
    ),
    ("convolution", "deep_convolution"): (
        "Vgg ResNet PreActivationResNet FixupResNet DenseNet DepthwiseSeparableCnn SqueezeExciteCnn"
        " ConvNext Inception AudioCnn"
    ),
    ("convolution", "segmentation"): "BatchNormUNet PlainUNet SegmentationNet SuperResolution Detector",
    ("attention", "attention"): (
        "AttentionPooling GatedBag SetTransformer DeepSet Perceiver PostNormEncoder VisionTransformer"
        " MlpMixer CosineDecoder"
    ),
    ("recurrent", "recurrent"): (
        "TanhRnn LstmLanguageModel PackedGru BidirectionalLstm LstmCrf ConnectionistLstm LstmAttention"
        " QuantileGru IndependentRnn ConvLstm"
    ),
    ("graph", "graph"): "Gcn Gat Gin MessagePassing GraphSage RelationalGcn Forces",
    ("state space", "state_space"): (
        "DiagonalSsm FourierSsm SelectiveScan LinearAttention Rwkv Retention DeltaRule MinimalGru"
    ),
    ("mixture of experts", "experts"): (
        "SwitchExperts TopTwoExperts SharedExperts SoftExperts ChoosingExperts GumbelExperts"
        " SkippedExperts ExpertRegressions MultiGateExperts"
    ),
    ("encoder-decoder", "encoder_decoder"): (
        "TransformerSeq2Seq GruSeq2Seq AttentionSeq2Seq ConvSeq2Seq PointerGenerator PointerNetwork"
    ),
    ("contrastive", "contrastive"): "Clip Siglip SimClr BarlowTwins VicReg Byol Siamese Triplet ArcFace",
    ("fine-tuning", "fine_tuning"): (
        "LowRankTuning BiasTuning PromptTuning Distillation FrozenBatchNorm UnusedHead LayerDrop Preferences"
    ),
    ("generative", "generative"): (
        "Gan WassersteinGan Vae VectorQuantizer DenoisingAutoencoder SparseAutoencoder Diffusion"
        " FlowMatching RealNvp ScoreMatching PixelCnn"
    ),
    ("scientific", "scientific"): (
        "Pinn Hamiltonian Nerf Siren HyperNetwork InnerLoop MixtureDensity NeuralOde DeepEquilibrium"
        " FourierOperator DeepOperator KolmogorovArnold"
    ),
    ("tabular", "tabular"): (
        "TabularMlp SelfNormalizing HighwayMaxout CoxSurvival OrdinalRegression MultiTask"
        " ObliviousTrees FeatureTransformer NBeats DecompositionLinear ReversibleNorm CountForecast"
    ),
    ("embedding", "embedding"): (
        "SkipGram GloVe DeepRecommendation FastText MatrixFactorization FactorizationMachine"
        " Translations SessionRanking TwoTowers"
    ),
    ("reinforcement learning", "reinforcement"): (
        "Reinforce Ppo Dqn CategoricalDqn SoftActorCritic RecurrentActorCritic GroupPolicy"
    ),
    ("tiny", "tiny"): (
        "LinearRegression LogisticRegression SoftmaxRegression SupportVectors PoissonRegression"
        " ThreeNeurons Xor PowerLaw ScalarAndBias GaussianFit HeteroscedasticRegression GaussianProcess"
    ),
}

# class -> options -> model of its own
_VARIANTS: dict[str, dict[str, Mapping[str, object]]] = {
    "Dqn": {"duelling": {"duelling": True}},
    "ScalarAndBias": {"one": {"pairs": 1}},
}

_FLOAT32_ONLY = {  # name -> the operation without a form for bfloat16
    "LocalResponseCnn": "avg_pool3d",
    "FourierSsm": "fft.rfft",
    "FourierOperator": "fft.rfft",
    "GaussianProcess": "linalg.cholesky",
}

_TRANSFORMERS = {  # family -> its architectures of `zbench/workloads/zoo.toml`
    "decoder": "gpt2 opt llama falcon gemma qwen2",
    "mixture of experts": "mixtral olmoe",
    "state space": "mamba recurrent_gemma",
    "encoder": "bert roberta albert electra",
    "encoder-decoder": "t5 bart",
    "vision": "vit swin convnext resnet",
    "audio": "wav2vec2 whisper",
    "vision-language": "clip",
    "time series": "patchtst",
}


def _own() -> Iterator[ZooModel]:
    for (kind, file), names in _CLASSES.items():
        for name in names.split():
            model = f"tests.zoo.{file}:{name}"
            yield ZooModel(name, kind, model, {}, name not in _FLOAT32_ONLY)
            for suffix, options in _VARIANTS.get(name, {}).items():
                yield ZooModel(f"{name}_{suffix}", kind, model, options, name not in _FLOAT32_ONLY)


def _of_transformers() -> Iterator[ZooModel]:
    for name in " ".join(_TRANSFORMERS.values()).split():
        options = {"architecture": name}
        yield ZooModel(name, "transformers", "zbench.workloads.zoo:build", options, name not in _FLOAT32_ONLY)


OWN_MODELS: tuple[ZooModel, ...] = tuple(_own())
MODELS: tuple[ZooModel, ...] = OWN_MODELS + tuple(_of_transformers())


STEPS = {5: 0.45, 20: 0.3, 60: 0.2, 300: 0.05}
RANKS = {2: 0.6, 3: 0.2, 4: 0.2}
BETAS = (
    (0.9, 0.999),
    (0.9, 0.95),
    (0.9, 0.98),
    (0.8, 0.99),
    (0.5, 0.9),
    (0.5, 0.999),
    (0.95, 0.9999),
    (0.0, 0.99),
)
BUILT_IN = (
    ZooModel("gpt", "decoder", "gpt", {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64}, True),
    ZooModel("mlp", "mlp", "mlp", {"hidden": 64, "vocabulary": 64}, True),
)
"""zbench's own workloads; the zoo has every other model."""


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """One drawn training run. workload, engine: keys of a sweep file. seed: of the workload."""

    model: ZooModel
    workload: dict[str, Any]
    engine: dict[str, Any]
    world_size: int
    steps: int
    seed: int

    @property
    def is_usual(self) -> bool:
        """A learning rate of at most 0.01 and at most 60 steps: few such runs may be `unchecked`."""
        return bool(self.engine["optimizer"]["lr"] <= 0.01) and self.steps <= 60

    @property
    def title(self) -> str:
        """Model, dtype and hyperparameters in one line."""
        engine = self.engine
        return (
            f"{self.model.name} {engine['dtype']} W={self.world_size} steps={self.steps} seed={self.seed}"
            f" clip={engine['gradient_clipping']:.3g} accumulate={engine['gradient_accumulation_steps']}"
            f" {engine['optimizer']}"
        )


def drawn_run(lot: random.Random) -> DrawnRun:
    """Draw a training run. A third of the draws have torch's default optimizer and no clipping."""
    model = lot.choice(MODELS + BUILT_IN)
    dtype = lot.choice(["float32", "float32", "bfloat16"]) if model.bfloat16 else "float32"
    workload = {
        "model": model.model,
        "options": dict(model.options),
        "sequence_length": lot.choice([8, 16]),
        "micro_batch_size": lot.choice([2, 4]),
    }
    engine: dict[str, Any] = {
        "dtype": dtype,
        "gradient_accumulation_steps": lot.choice([1, 1, 2]),
        "gradient_clipping": 0.0,
        "optimizer": {"name": "adamw", "lr": 1e-3},
    }
    if lot.random() > 1 / 3:
        engine["gradient_clipping"] = lot.choice([0.0, 1.0, _log_uniform(lot, 1e-3, 1e3)])
        engine["optimizer"] = _optimizer(lot)
    return DrawnRun(
        model,
        workload,
        engine,
        world_size=_weighted(lot, RANKS),
        steps=_weighted(lot, STEPS),
        seed=lot.randrange(1 << 30),
    )


def _optimizer(lot: random.Random) -> dict[str, Any]:
    """Draw hyperparameters of Adam: half of the draws keep torch's eps, a third its betas."""
    return {
        "name": lot.choice(["adam", "adamw", "adamw"]),
        "lr": _log_uniform(lot, 1e-6, 0.3),
        "betas": BETAS[0] if lot.random() < 1 / 3 else lot.choice(BETAS),
        "eps": 1e-8 if lot.random() < 0.5 else _log_uniform(lot, 1e-12, 1e-4),
        "weight_decay": lot.choice([0.0, 0.01, 0.1, 0.3]),
        "amsgrad": lot.random() < 0.1,
    }


def _log_uniform(lot: random.Random, least: float, largest: float) -> float:
    return float(f"{math.exp(lot.uniform(math.log(least), math.log(largest))):.3g}")


def _weighted(lot: random.Random, weights: dict[int, float]) -> int:
    return lot.choices(list(weights), list(weights.values()))[0]
