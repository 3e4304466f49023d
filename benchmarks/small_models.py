"""Hand-written models, small ones for measurements on a CPU, larger ones for GPUs; needs torch.

asrpt-profile run benchmarks.small_models:transformer
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from slurm_asrpt.profile.library_tools.torch_models import CrossEntropy


class Layer(nn.Module):
    """A transformer layer: attention and feed-forward, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        parts = self.mix(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.feed(self.between(x))


class Transformer(nn.Module):
    """Embedding, layers, and a word head with its own matrix."""

    def __init__(self, layers: int, width: int, words: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def transformer(batch: int = 8, layers: int = 6, width: int = 192, words: int = 1000, length: int = 64) -> Any:
    """A small language model: 6 layers of width 192, 64 tokens."""
    torch.manual_seed(0)
    tokens = torch.randint(words, (batch, length))
    wanted = torch.randint(words, (batch * length,))
    model = Transformer(layers, width, words, length)
    return model, tokens, CrossEntropy(wanted)


def cnn(batch: int = 16, size: int = 32) -> Any:
    """A small VGG: four blocks of two convolutions with batch norm, and a classifier."""
    torch.manual_seed(0)
    blocks, channels = [], 3
    for width in (32, 64, 128, 256):
        parts: list[nn.Module] = []
        for _ in range(2):
            parts += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        blocks.append(_Block(*parts, nn.MaxPool2d(2)))
    last = _Block(nn.Flatten(), nn.Linear(256 * (size // 16) ** 2, 512), nn.ReLU(), nn.Linear(512, 100))
    images, wanted = torch.randn(batch, 3, size, size), torch.randint(100, (batch,))
    return nn.Sequential(*blocks, last), images, CrossEntropy(wanted)


class _Block(nn.Module):
    """Layers that are measured together."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Any) -> Any:
        return self.parts(x)


MODELS: dict[str, dict[str, Callable[..., Any]]] = {
    "cpu": {"transformer": transformer, "cnn": cnn},
    "cuda": {
        "gpt2-small": partial(transformer, batch=8, layers=12, width=768, words=50257, length=512),
        "gpt2-medium": partial(transformer, batch=4, layers=24, width=1024, words=50257, length=512),
        "transformer-wide": partial(transformer, batch=8, layers=4, width=2048, words=32000, length=512),
        "transformer-long": partial(transformer, batch=2, layers=12, width=768, words=32000, length=2048),
        "cnn-64": partial(cnn, batch=256, size=64),
        "cnn-224": partial(cnn, batch=64, size=224),
    },
}
"""The models by the device that they are large enough for."""
