"""The table of the zoo: each model's name, kind and options, and whether it trains in bfloat16."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


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
