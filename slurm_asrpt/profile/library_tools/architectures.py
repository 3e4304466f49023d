"""Model architectures, layer by layer: the nine of the paper's Table I (TABLE1_MODELS), and recent ones
(RECENT_MODELS).

Counting rules, the same for all: a multiply-add is 2 FLOPs; convolutions, matrix products and attention products count,
biases, normalizations, activations and pooling do not; all parameters count. Figures are per sample (one image, or one
sequence of 512 tokens: section V-A).

Memory for the backward pass: each convolution and each normalization keeps its input, so with batch norm a
convolution's output counts twice (its ReLU is in place); a matrix product keeps its input; a transformer layer keeps 17
h + 2.5 heads x tokens values per token (Korthikanti et al., MLSys 2023, equation 1: 34 sbh + 5 as^2b bytes at two bytes
per value).

The recent models with long sequences keep no attention scores but recompute them (Dao et al., FlashAttention, NeurIPS
2022). Their mini-batches are assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

TOKENS = 512
IMAGE_CHANNELS = 3


class Kind(StrEnum):
    """What determines how fast a GPU runs a model: its operations and their width."""

    CONVOLUTIONS = "convolutions"
    WIDTH_1024 = "transformer of width 1024"
    WIDE = "wide transformer"


@dataclass(frozen=True)
class Layer:
    """A part of a model that is never split.

    flops: of the forward pass, per sample. params: trainable. out: values handed to the next layer, per sample.
    tied: parameters shared with the first layer; a stage without that layer needs a copy.
    kept: values kept for the backward pass, per sample. sliced: values that tensor slices all-reduce, per sample;
    0: not sliced.
    experts: part of params that belongs to experts. routed: values sent to experts, per sample, one way.
    """

    name: str
    flops: float
    params: int
    out: int
    tied: int = 0
    kept: float = 0.0
    sliced: float = 0.0
    experts: int = 0
    routed: float = 0.0


@dataclass(frozen=True)
class Model:
    """batch: its mini-batch, from Table I or assumed. source: where the architecture is specified."""

    key: str
    name: str
    batch: int
    layers: tuple[Layer, ...]
    source: str
    kind: Kind

    @property
    def params(self) -> int:
        return sum(layer.params for layer in self.layers)

    @property
    def flops(self) -> float:
        return sum(layer.flops for layer in self.layers)


def _conv_macs(channels_in: int, channels_out: int, kernel: tuple[int, int], size: int) -> float:
    """Multiply-adds of a convolution whose output is ``size`` x ``size``."""
    return float(channels_in * channels_out * kernel[0] * kernel[1] * size * size)


# --- VGG19: Simonyan and Zisserman 2015, Table 1, column E ------------------------------------------------------------

_VGG19_BLOCKS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def _vgg19_layers() -> list[Layer]:
    """Sixteen 3x3 convolutions with bias, a 2x2 pool after each block, three fully connected layers; 224 x 224 in."""
    layers: list[Layer] = []
    channels, size = IMAGE_CHANNELS, 224
    for block, (width, count) in enumerate(_VGG19_BLOCKS, 1):
        for number in range(1, count + 1):
            macs = _conv_macs(channels, width, (3, 3), size)
            out_size = size // 2 if number == count else size
            params, out = 9 * channels * width + width, width * out_size**2
            layers.append(Layer(f"conv{block}_{number}", 2 * macs, params, out, kept=channels * size**2))
            channels = width
        size //= 2
    inputs = channels * size * size
    for name, outputs in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
        layers.append(Layer(name, 2.0 * inputs * outputs, inputs * outputs + outputs, outputs, kept=inputs))
        inputs = outputs
    return layers


# --- ResNet152: He et al. 2016, Table 1 -------------------------------------------------------------------------------

_RESNET152_GROUPS = ((64, 3, 56), (128, 8, 28), (256, 36, 14), (512, 3, 7))


def _bottleneck(name: str, channels: int, width: int, size: int, stride: int) -> Layer:
    """1x1, 3x3 (with the stride), 1x1 to 4 x width, and a projection where the shape changes; batch norm after each."""
    out = 4 * width
    macs = _conv_macs(channels, width, (1, 1), size * stride)
    macs += _conv_macs(width, width, (3, 3), size) + _conv_macs(width, out, (1, 1), size)
    params = channels * width + 9 * width * width + width * out + 2 * (width + width + out)
    kept = 2.0 * (width * (size * stride) ** 2 + width * size**2 + out * size**2)
    if channels != out:
        macs += _conv_macs(channels, out, (1, 1), size)
        params += channels * out + 2 * out
        kept += 2 * out * size**2
    return Layer(name, 2 * macs, params, out * size * size, kept=kept)


def _resnet152_layers() -> list[Layer]:
    """Stem, 50 bottleneck blocks, pool and classifier; 224 x 224 in."""
    stem_macs = _conv_macs(IMAGE_CHANNELS, 64, (7, 7), 112)
    stem = Layer("stem", 2 * stem_macs, 49 * IMAGE_CHANNELS * 64 + 2 * 64, 64 * 56 * 56, kept=2 * 64 * 112 * 112)
    layers = [stem]
    channels = 64
    for group, (width, count, size) in enumerate(_RESNET152_GROUPS, 2):
        for number in range(1, count + 1):
            stride = 2 if number == 1 and group > 2 else 1
            layers.append(_bottleneck(f"conv{group}_{number}", channels, width, size, stride))
            channels = 4 * width
    layers.append(Layer("fc", 2.0 * channels * 1000, channels * 1000 + 1000, 1000, kept=channels))
    return layers


# --- Inception-V3: Szegedy et al. 2016, as in torchvision.models.inception, without the auxiliary classifier ----------

Conv = tuple[int, int, tuple[int, int], int]
"""Channels in, channels out, kernel, output size of one convolution (batch norm, no bias)."""


def _conv_block(name: str, convs: Sequence[Conv], out_channels: int, out_size: int) -> Layer:
    macs = sum(_conv_macs(*conv) for conv in convs)
    params = sum(i * o * kernel[0] * kernel[1] + 2 * o for i, o, kernel, _ in convs)
    kept = 2.0 * sum(o * size * size for _, o, _, size in convs)
    return Layer(name, 2 * macs, params, out_channels * out_size * out_size, kept=kept)


def _inception_a(name: str, c: int, pool: int) -> Layer:
    one, three, five = (1, 1), (3, 3), (5, 5)
    convs = [(c, 64, one, 35), (c, 48, one, 35), (48, 64, five, 35), (c, 64, one, 35), (64, 96, three, 35)]
    convs += [(96, 96, three, 35), (c, pool, one, 35)]
    return _conv_block(name, convs, 224 + pool, 35)


def _inception_b(name: str) -> Layer:
    convs = [(288, 384, (3, 3), 17), (288, 64, (1, 1), 35), (64, 96, (3, 3), 35), (96, 96, (3, 3), 17)]
    return _conv_block(name, convs, 768, 17)


def _inception_c(name: str, c7: int) -> Layer:
    one, row, column = (1, 1), (1, 7), (7, 1)
    convs: list[Conv] = [(768, 192, one, 17), (768, c7, one, 17), (c7, c7, row, 17), (c7, 192, column, 17)]
    convs += [(768, c7, one, 17), (c7, c7, column, 17), (c7, c7, row, 17), (c7, c7, column, 17), (c7, 192, row, 17)]
    convs += [(768, 192, one, 17)]
    return _conv_block(name, convs, 768, 17)


def _inception_d(name: str) -> Layer:
    convs: list[Conv] = [(768, 192, (1, 1), 17), (192, 320, (3, 3), 8), (768, 192, (1, 1), 17)]
    convs += [(192, 192, (1, 7), 17), (192, 192, (7, 1), 17), (192, 192, (3, 3), 8)]
    return _conv_block(name, convs, 1280, 8)


def _inception_e(name: str, c: int) -> Layer:
    one, row, column = (1, 1), (1, 3), (3, 1)
    convs: list[Conv] = [(c, 320, one, 8), (c, 384, one, 8), (384, 384, row, 8), (384, 384, column, 8)]
    convs += [(c, 448, one, 8), (448, 384, (3, 3), 8), (384, 384, row, 8), (384, 384, column, 8), (c, 192, one, 8)]
    return _conv_block(name, convs, 2048, 8)


def _inception_v3_layers() -> list[Layer]:
    """Five stem convolutions, eleven inception blocks, pool and classifier; 299 x 299 in."""
    layers = [
        _conv_block("stem_1", [(IMAGE_CHANNELS, 32, (3, 3), 149)], 32, 149),
        _conv_block("stem_2", [(32, 32, (3, 3), 147)], 32, 147),
        _conv_block("stem_3", [(32, 64, (3, 3), 147)], 64, 73),
        _conv_block("stem_4", [(64, 80, (1, 1), 73)], 80, 73),
        _conv_block("stem_5", [(80, 192, (3, 3), 71)], 192, 35),
    ]
    layers += [_inception_a("5b", 192, 32), _inception_a("5c", 256, 64), _inception_a("5d", 288, 64)]
    layers += [_inception_b("6a")]
    layers += [_inception_c(name, c7) for name, c7 in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192))]
    layers += [_inception_d("7a"), _inception_e("7b", 1280), _inception_e("7c", 2048)]
    layers.append(Layer("fc", 2.0 * 2048 * 1000, 2048 * 1000 + 1000, 1000, kept=2048))
    return layers


# --- Transformers -----------------------------------------------------------------------------------------------------


def attention_flops(inner: int, tokens: int = TOKENS) -> float:
    """Scores and weighted sum, Q K^T and A V: 2 products of 2 tokens^2 inner FLOPs."""
    return 4.0 * tokens**2 * inner


def kept_values(hidden: int, heads: int, tokens: int = TOKENS) -> float:
    """Values kept by a transformer layer, per sequence; see above."""
    return tokens * (17.0 * hidden + 2.5 * heads * tokens)


def block(name: str, hidden: int, heads: int, matrices: int, others: int, tokens: int = TOKENS) -> Layer:
    """A transformer layer: ``matrices`` parameters that each token is multiplied with once, ``others`` biases and
    norms.

    Its tensor slices all-reduce the output of attention and feed-forward, and the gradients likewise: four times
    tokens x hidden (Shoeybi et al., Megatron-LM, 2019, section 3).
    """
    flops = 2.0 * tokens * matrices + attention_flops(hidden, tokens)
    out = tokens * hidden
    return Layer(name, flops, matrices + others, out, kept=kept_values(hidden, heads, tokens), sliced=4.0 * out)


def embedding(rows: int, hidden: int, tokens: int = TOKENS) -> Layer:
    """A table of ``rows``; slices hold parts of its rows and sum their results (Shoeybi et al.)."""
    out = tokens * hidden
    return Layer("embedding", 0.0, rows * hidden, out, sliced=float(out))


def _bert_large_layers() -> list[Layer]:
    """24 layers of 4 h^2 attention and 8 h^2 feed-forward; h = 1024, 30,522 word pieces; a span head (SQuAD)."""
    hidden, layers = 1024, [embedding(30522 + 512 + 2 + 2, 1024)]
    layers += [block(f"layer{i}", hidden, 16, 12 * hidden**2, 13 * hidden) for i in range(1, 25)]
    return [*layers, _span_head(hidden)]


def _xlnet_large_layers() -> list[Layer]:
    """As BERT-large with a fifth matrix for relative positions in each layer; 32,000 pieces; a span head (SQuAD)."""
    hidden, layers = 1024, [embedding(32000, 1024)]
    layers += [block(f"layer{i}", hidden, 16, 13 * hidden**2, 14 * hidden) for i in range(1, 25)]
    return [*layers, _span_head(hidden)]


def _span_head(hidden: int) -> Layer:
    return Layer("span_head", 2.0 * TOKENS * hidden * 2, 2 * hidden + 2, 2 * TOKENS, kept=TOKENS * hidden)


def _t5_11b_layers() -> list[Layer]:
    """24 encoder and 24 decoder layers, d_model 1024, d_ff 65536, 128 heads of 128; 512 tokens on either side.

    The encoder's output is passed from decoder layer to decoder layer, for their cross attention. Kept: queries,
    keys, values and the weighted sum of each attention and its scores, both sides of the feed-forward, and the
    layer's input.
    """
    model, inner, feed, vocabulary, heads = 1024, 128 * 128, 65536, 32128, 128
    attention, forward = 4 * model * inner, 2 * model * feed
    attended, fed = TOKENS * (4.0 * inner + 2.5 * heads * TOKENS), TOKENS * 2.0 * feed
    out = TOKENS * model
    layers = [embedding(vocabulary, model)]
    for i in range(1, 25):
        flops = 2.0 * TOKENS * (attention + forward) + attention_flops(inner)
        kept, params = attended + fed + 5.0 * out, attention + forward + 2 * model
        layers.append(Layer(f"encoder{i}", flops, params, out, kept=kept, sliced=4.0 * out))
    for i in range(1, 25):
        flops = 2.0 * TOKENS * (2 * attention + forward) + 2 * attention_flops(inner)
        kept, params = 2 * attended + fed + 8.0 * out, 2 * attention + forward + 3 * model
        layers.append(Layer(f"decoder{i}", flops, params, 2 * out, kept=kept, sliced=6.0 * out))
    return [*layers, word_head(model, vocabulary, 0)]


def word_head(hidden: int, vocabulary: int, params: int, tokens: int = TOKENS) -> Layer:
    """Scores of the whole vocabulary, with the embedding's matrix; ``params`` of its own. The scores are kept."""
    flops, out = 2.0 * tokens * hidden * vocabulary, tokens * vocabulary
    kept, sliced = float(tokens * hidden + out), float(tokens * hidden)
    return Layer("word_head", flops, params, out, tied=vocabulary * hidden, kept=kept, sliced=sliced)


def _gpt_layers(count: int, hidden: int, heads: int) -> list[Layer]:
    """``count`` layers of 4 h^2 attention and 8 h^2 feed-forward; 50,257 tokens, 2,048 positions, tied word head."""
    vocabulary = 50257
    layers = [embedding(vocabulary + 2048, hidden)]
    layers += [block(f"layer{i}", hidden, heads, 12 * hidden**2, 13 * hidden) for i in range(1, count + 1)]
    return [*layers, word_head(hidden, vocabulary, 2 * hidden)]


def _gpt(name: str, batch: int, count: int, hidden: int, heads: int) -> Model:
    source = f"Brown et al., Language Models are Few-Shot Learners, 2020, Table 2.1; {count} layers of width {hidden}"
    layers = tuple(_gpt_layers(count, hidden, heads))
    return Model(f"gpt-{name.lower()}", f"GPT-{name}", batch, layers, source, Kind.WIDE)


_VGG19 = "Simonyan and Zisserman, ICLR 2015, Table 1 E"
_RESNET152 = "He et al., CVPR 2016, Table 1"
_INCEPTION = "Szegedy et al., CVPR 2016, widths as in torchvision's inception_v3 without the auxiliary classifier"
_BERT = "Devlin et al., NAACL 2019, section 3"
_XLNET = "Yang et al., NeurIPS 2019, appendix A.4 (Table I of the A-SRPT paper says 550M parameters)"
_T5 = "Raffel et al., JMLR 2020, section 3.7 (11B)"

TABLE1_MODELS = (
    Model("vgg19", "VGG19", 32, tuple(_vgg19_layers()), _VGG19, Kind.CONVOLUTIONS),
    Model("resnet152", "ResNet152", 4, tuple(_resnet152_layers()), _RESNET152, Kind.CONVOLUTIONS),
    Model("inception-v3", "Inception-V3", 32, tuple(_inception_v3_layers()), _INCEPTION, Kind.CONVOLUTIONS),
    Model("bert-large", "BERT-large", 4, tuple(_bert_large_layers()), _BERT, Kind.WIDTH_1024),
    Model("xlnet-large", "XLNet-large", 4, tuple(_xlnet_large_layers()), _XLNET, Kind.WIDTH_1024),
    Model("t5-11b", "T5-11B", 8, tuple(_t5_11b_layers()), _T5, Kind.WIDE),
    _gpt("6.7B", 32, 32, 4096, 32),
    _gpt("13B", 32, 40, 5120, 40),
    _gpt("175B", 16, 96, 12288, 96),
)


CONTEXT = 4096
"""Tokens of a sequence; a batch of 32 sequences is 131,072 tokens."""


def _decoder(name: str, hidden: int, heads: int, pairs: int, feed: int) -> Layer:
    """Grouped-query attention with ``pairs`` key-value heads and a gated feed-forward; two RMS norms, no biases."""
    inner = hidden * pairs // heads
    matrices = 2 * hidden**2 + 2 * hidden * inner + 3 * hidden * feed
    return block(name, hidden, 0, matrices, 2 * hidden, CONTEXT)


def _mixture(name: str, hidden: int, heads: int, pairs: int, feed: int) -> Layer:
    """As ``_decoder``, with eight experts as the feed-forward; a router sends each token to two of them."""
    experts, chosen = 8, 2
    plain, expert = _decoder(name, hidden, heads, pairs, 0), 3 * hidden * feed
    return Layer(
        name,
        plain.flops + 2.0 * CONTEXT * (chosen * expert + experts * hidden),
        plain.params + experts * expert + experts * hidden,
        plain.out,
        kept=kept_values(hidden, 0, CONTEXT) + CONTEXT * (chosen - 1) * 2.0 * feed,
        sliced=plain.sliced,
        experts=experts * expert,
        routed=float(CONTEXT * chosen * hidden),
    )


def _untied_head(hidden: int, vocabulary: int) -> Layer:
    """A word head with its own matrix, and the last norm."""
    tied = word_head(hidden, vocabulary, 0, CONTEXT)
    return replace(tied, params=vocabulary * hidden + hidden, tied=0)


def _llama(size: str, count: int, hidden: int, heads: int, feed: int) -> Model:
    layers = [embedding(128256, hidden, CONTEXT)]
    layers += [_decoder(f"layer{i}", hidden, heads, 8, feed) for i in range(1, count + 1)]
    layers.append(_untied_head(hidden, 128256))
    source = f"Dubey et al., The Llama 3 Herd of Models, 2024, Table 3; {count} layers of width {hidden}, 4,096 tokens"
    return Model(f"llama-3-{size.lower()}", f"Llama 3 {size}", 32, tuple(layers), source, Kind.WIDE)


def _mixtral() -> Model:
    hidden, vocabulary = 4096, 32000
    layers = [embedding(vocabulary, hidden, CONTEXT)]
    layers += [_mixture(f"layer{i}", hidden, 32, 8, 14336) for i in range(1, 33)]
    layers.append(_untied_head(hidden, vocabulary))
    source = "Jiang et al., Mixtral of Experts, 2024, Table 1; 32 layers of 8 experts, two for each token, 4,096 tokens"
    return Model("mixtral-8x7b", "Mixtral 8x7B", 32, tuple(layers), source, Kind.WIDE)


def _vit_large() -> Model:
    """24 layers of width 1024 over 196 patches of 16 x 16 pixels and a class token; 224 x 224 in."""
    hidden, tokens, patch = 1024, 197, 3 * 16 * 16
    embedding = patch * hidden + hidden + hidden + tokens * hidden
    layers = [Layer("patches", 2.0 * 196 * patch * hidden, embedding, tokens * hidden, kept=196.0 * patch)]
    layers += [block(f"layer{i}", hidden, 16, 12 * hidden**2, 13 * hidden, tokens) for i in range(1, 25)]
    layers.append(Layer("head", 2.0 * hidden * 1000, hidden * 1000 + 1000 + 2 * hidden, 1000, kept=tokens * hidden))
    source = "Dosovitskiy et al., ICLR 2021, Table 1 (Large, 16 x 16), as in torchvision's vit_l_16"
    return Model("vit-l16", "ViT-L/16", 128, tuple(layers), source, Kind.WIDTH_1024)


RECENT_MODELS = (_llama("8B", 32, 4096, 32, 14336), _llama("70B", 80, 8192, 64, 28672), _vit_large(), _mixtral())
