"""The library's models in torch, with one child module per layer of ``architectures.py``. Needs torch.

Random weights and batches, for measurements only. Each is a factory for asrpt-profile run:

    asrpt-profile run slurm_asrpt.profile.library_tools.torch_models:resnet152 --device cuda

The experts of a mixture get equal numbers of tokens, as in the tables. Dropout is omitted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slurm_asrpt.profile.library_tools.torch_transformers import (
    BertLayer,
    DecoderLayer,
    Embedding,
    Experts,
    Gated,
    LlamaHead,
    LlamaLayer,
    Patches,
    Pooled,
    SpanHead,
    T5Decoder,
    T5Encoder,
    WordHead,
    XlnetLayer,
)

Made = tuple[nn.Module, Any, Callable[[Any], Any]]
Named = Iterator[tuple[str, nn.Module]]


class CrossEntropy:
    """Cross entropy of scores (... x classes). The targets are copied to the device once: a copy would make the
    host wait."""

    def __init__(self, wanted: Any) -> None:
        self.wanted = wanted

    def __call__(self, scores: Any) -> Any:
        self.wanted = self.wanted.to(scores.device)
        return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), self.wanted)


class Part(nn.Module):
    """A sequence of modules that are measured together."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(*inside)

    def forward(self, x: Any) -> Any:
        return self.inside(x)


def _chain(parts: Named) -> nn.Module:
    return nn.Sequential(OrderedDict(parts))


# --- Images -----------------------------------------------------------------------------------------------------------


def _images(parts: Named, batch: int, size: int) -> Made:
    return _chain(parts), torch.randn(batch, 3, size, size), CrossEntropy(torch.randint(1000, (batch,)))


def vgg19(batch: int = 32, size: int = 224) -> Made:
    return _images(_vgg19(size), batch, size)


def _vgg19(size: int) -> Named:
    channels = 3
    for block, (width, count) in enumerate(((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)), 1):
        for number in range(1, count + 1):
            pool = [nn.MaxPool2d(2)] if number == count else []
            yield f"conv{block}_{number}", Part(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), *pool)
            channels = width
    yield "fc6", Part(nn.Flatten(), nn.Linear(channels * (size // 32) ** 2, 4096), nn.ReLU())
    yield "fc7", Part(nn.Linear(4096, 4096), nn.ReLU())
    yield "fc8", nn.Linear(4096, 1000)


def _conv(channels: int, out: int, kernel: int | tuple[int, int], relu: bool = True, **how: Any) -> list[nn.Module]:
    """A convolution, followed by batch norm."""
    last = [nn.ReLU(inplace=True)] if relu else []
    return [nn.Conv2d(channels, out, kernel, bias=False, **how), nn.BatchNorm2d(out), *last]


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        middle = _conv(width, width, 3, stride=stride, padding=1)
        self.body = Part(*_conv(channels, width, 1), *middle, *_conv(width, out, 1, relu=False))
        self.beside = Part(*_conv(channels, out, 1, relu=False, stride=stride)) if channels != out else nn.Identity()

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.beside(x))


def resnet50(batch: int = 32, size: int = 224) -> Made:
    return _images(_resnet(3, 4, 6, 3), batch, size)


def resnet152(batch: int = 4, size: int = 224) -> Made:
    return _images(_resnet(3, 8, 36, 3), batch, size)


def _resnet(*counts: int) -> Named:
    yield "stem", Part(*_conv(3, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, 2, padding=1))
    channels = 64
    for group, (width, count) in enumerate(zip((64, 128, 256, 512), counts, strict=True), 2):
        for number in range(1, count + 1):
            yield f"conv{group}_{number}", _Bottleneck(channels, width, 2 if number == 1 and group > 2 else 1)
            channels = 4 * width
    yield "fc", Part(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class _Branches(nn.Module):
    """Parallel branches whose channels are concatenated; a branch may fork into two at its end."""

    def __init__(self, *branches: nn.Module | tuple[nn.Module, nn.Module, nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(b if isinstance(b, nn.Module) else nn.ModuleList(b) for b in branches)

    def forward(self, x: Any) -> Any:
        found = []
        for branch in self.branches:
            if isinstance(branch, nn.ModuleList):
                before = branch[0](x)
                found += [branch[1](before), branch[2](before)]
            else:
                found.append(branch(x))
        return torch.cat(found, 1)


_POOL = partial(nn.AvgPool2d, 3, 1, padding=1)
_ROW: dict[str, Any] = {"kernel": (1, 7), "padding": (0, 3)}
_COLUMN: dict[str, Any] = {"kernel": (7, 1), "padding": (3, 0)}


def _inception_a(c: int, pool: int) -> nn.Module:
    three = [*_conv(c, 64, 1), *_conv(64, 96, 3, padding=1), *_conv(96, 96, 3, padding=1)]
    five = [*_conv(c, 48, 1), *_conv(48, 64, 5, padding=2)]
    return _Branches(Part(*_conv(c, 64, 1)), Part(*five), Part(*three), Part(_POOL(), *_conv(c, pool, 1)))


def _inception_b() -> nn.Module:
    three = [*_conv(288, 64, 1), *_conv(64, 96, 3, padding=1), *_conv(96, 96, 3, stride=2)]
    return _Branches(Part(*_conv(288, 384, 3, stride=2)), Part(*three), nn.MaxPool2d(3, 2))


def _inception_c(c7: int) -> nn.Module:
    seven = [*_conv(768, c7, 1), *_conv(c7, c7, **_ROW), *_conv(c7, 192, **_COLUMN)]
    twice = [*_conv(768, c7, 1), *_conv(c7, c7, **_COLUMN), *_conv(c7, c7, **_ROW)]
    twice += [*_conv(c7, c7, **_COLUMN), *_conv(c7, 192, **_ROW)]
    return _Branches(Part(*_conv(768, 192, 1)), Part(*seven), Part(*twice), Part(_POOL(), *_conv(768, 192, 1)))


def _inception_d() -> nn.Module:
    three = [*_conv(768, 192, 1), *_conv(192, 320, 3, stride=2)]
    seven = [*_conv(768, 192, 1), *_conv(192, 192, **_ROW), *_conv(192, 192, **_COLUMN)]
    return _Branches(Part(*three), Part(*seven, *_conv(192, 192, 3, stride=2)), nn.MaxPool2d(3, 2))


def _inception_e(c: int) -> nn.Module:
    def fork(*before: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module]:
        row, column = _conv(384, 384, (1, 3), padding=(0, 1)), _conv(384, 384, (3, 1), padding=(1, 0))
        return Part(*before), Part(*row), Part(*column)

    double = fork(*_conv(c, 448, 1), *_conv(448, 384, 3, padding=1))
    return _Branches(Part(*_conv(c, 320, 1)), fork(*_conv(c, 384, 1)), double, Part(_POOL(), *_conv(c, 192, 1)))


def inception_v3(batch: int = 32, size: int = 299) -> Made:
    return _images(_inception_v3(), batch, size)


def _inception_v3() -> Named:
    yield "stem_1", Part(*_conv(3, 32, 3, stride=2))
    yield "stem_2", Part(*_conv(32, 32, 3))
    yield "stem_3", Part(*_conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2))
    yield "stem_4", Part(*_conv(64, 80, 1))
    yield "stem_5", Part(*_conv(80, 192, 3), nn.MaxPool2d(3, 2))
    for name, channels, pool in (("5b", 192, 32), ("5c", 256, 64), ("5d", 288, 64)):
        yield name, _inception_a(channels, pool)
    yield "6a", _inception_b()
    for name, c7 in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        yield name, _inception_c(c7)
    yield "7a", _inception_d()
    yield "7b", _inception_e(1280)
    yield "7c", _inception_e(2048)
    yield "fc", Part(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vit_l16(batch: int = 128, size: int = 224, hidden: int = 1024, heads: int = 16, count: int = 24) -> Made:
    def parts() -> Named:
        yield "patches", Patches(hidden, size)
        for number in range(1, count + 1):
            yield f"layer{number}", DecoderLayer(hidden, heads, causal=False)
        yield "head", Pooled(hidden, 1000)

    return _images(parts(), batch, size)


# --- Text -------------------------------------------------------------------------------------------------------------


def _text(parts: Named, batch: int, tokens: int, vocabulary: int, classes: int) -> Made:
    wanted = torch.randint(classes, (batch * (tokens if classes == vocabulary else 2),))
    return _chain(parts), torch.randint(vocabulary, (batch, tokens)), CrossEntropy(wanted)


def _spans(
    layer: Callable[[], nn.Module],
    embedding: nn.Module,
    batch: int,
    tokens: int,
    vocabulary: int,
    hidden: int,
    count: int,
) -> Made:
    """Start and end of an answer among all tokens."""

    def parts() -> Named:
        yield "embedding", embedding
        for number in range(1, count + 1):
            yield f"layer{number}", layer()
        yield "span_head", SpanHead(hidden)

    return _text(parts(), batch, tokens, vocabulary, tokens)


def bert_large(
    batch: int = 4, tokens: int = 512, hidden: int = 1024, heads: int = 16, count: int = 24, vocabulary: int = 30522
) -> Made:
    embedding = Embedding(vocabulary, hidden, positions=512, kinds=2, norm=True)
    return _spans(partial(BertLayer, hidden, heads), embedding, batch, tokens, vocabulary, hidden, count)


def xlnet_large(
    batch: int = 4, tokens: int = 512, hidden: int = 1024, heads: int = 16, count: int = 24, vocabulary: int = 32000
) -> Made:
    embedding = Embedding(vocabulary, hidden)
    return _spans(partial(XlnetLayer, hidden, heads), embedding, batch, tokens, vocabulary, hidden, count)


def t5_11b(
    batch: int = 8,
    tokens: int = 512,
    hidden: int = 1024,
    heads: int = 128,
    feed: int = 65536,
    count: int = 24,
    vocabulary: int = 32128,
) -> Made:
    def parts() -> Named:
        embedding = Embedding(vocabulary, hidden)
        yield "embedding", embedding
        for kind, layer in (("encoder", T5Encoder), ("decoder", T5Decoder)):
            for number in range(1, count + 1):
                yield f"{kind}{number}", layer(hidden, heads, feed)
        yield "word_head", WordHead(embedding, None)

    return _text(parts(), batch, tokens, vocabulary, vocabulary)


def gpt(
    batch: int, count: int, hidden: int, heads: int, tokens: int = 512, vocabulary: int = 50257, positions: int = 2048
) -> Made:
    def parts() -> Named:
        embedding = Embedding(vocabulary, hidden, positions=positions)
        yield "embedding", embedding
        for number in range(1, count + 1):
            yield f"layer{number}", DecoderLayer(hidden, heads, causal=True)
        yield "word_head", WordHead(embedding, nn.LayerNorm(hidden))

    return _text(parts(), batch, tokens, vocabulary, vocabulary)


def gpt_6_7b(batch: int = 32, hidden: int = 4096, heads: int = 32, **sizes: Any) -> Made:
    return gpt(batch, 32, hidden, heads, **sizes)


def gpt_13b(batch: int = 32, hidden: int = 5120, heads: int = 40, **sizes: Any) -> Made:
    return gpt(batch, 40, hidden, heads, **sizes)


def gpt_175b(batch: int = 16, hidden: int = 12288, heads: int = 96, **sizes: Any) -> Made:
    return gpt(batch, 96, hidden, heads, **sizes)


def llama(
    batch: int,
    count: int,
    hidden: int,
    heads: int,
    feed: int,
    make_feed: Callable[[int, int], nn.Module] = Gated,
    tokens: int = 4096,
    vocabulary: int = 128256,
) -> Made:
    """Eight key-value heads, rotary positions, a gated feed-forward."""

    def parts() -> Named:
        yield "embedding", Embedding(vocabulary, hidden)
        for number in range(1, count + 1):
            yield f"layer{number}", LlamaLayer(hidden, heads, 8, tokens, make_feed(hidden, feed))
        yield "word_head", LlamaHead(hidden, vocabulary)

    return _text(parts(), batch, tokens, vocabulary, vocabulary)


def llama_3_8b(batch: int = 32, hidden: int = 4096, heads: int = 32, feed: int = 14336, **sizes: Any) -> Made:
    return llama(batch, 32, hidden, heads, feed, **sizes)


def llama_3_70b(batch: int = 32, hidden: int = 8192, heads: int = 64, feed: int = 28672, **sizes: Any) -> Made:
    return llama(batch, 80, hidden, heads, feed, **sizes)


def mixtral_8x7b(
    batch: int = 32, hidden: int = 4096, heads: int = 32, feed: int = 14336, vocabulary: int = 32000, **sizes: Any
) -> Made:
    return llama(batch, 32, hidden, heads, feed, Experts, vocabulary=vocabulary, **sizes)
