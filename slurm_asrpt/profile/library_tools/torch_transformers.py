"""Transformer layers in torch, which torch_models.py combines into models. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _attend(q: Any, k: Any, v: Any, heads: int, causal: bool = False, mask: Any = None, rotate: Any = None) -> Any:
    """Attention of (batch x tokens x inner) by heads; k and v may have fewer heads, of the same width."""
    width = q.shape[-1] // heads
    q, k, v = (t.unflatten(-1, (-1, width)).transpose(1, 2) for t in (q, k, v))
    if rotate is not None:
        q, k = rotate(q), rotate(k)
    grouped = k.shape[1] != heads
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)
    return mixed.transpose(1, 2).flatten(2)


class Embedding(nn.Module):
    """Embedding of tokens, and optionally of positions and kinds."""

    def __init__(self, vocabulary: int, hidden: int, positions: int = 0, kinds: int = 0, norm: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.places = nn.Embedding(positions, hidden) if positions else None
        self.kinds = nn.Embedding(kinds, hidden) if kinds else None
        self.norm = nn.LayerNorm(hidden) if norm else None

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        if self.kinds is not None:
            x = x + self.kinds(torch.zeros_like(tokens))
        return x if self.norm is None else self.norm(x)


class Attention(nn.Module):
    """Self-attention with biases."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.mix, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Any, mask: Any = None) -> Any:
        q, k, v = self.mix(x).chunk(3, -1)
        return self.out(_attend(q, k, v, self.heads, self.causal, mask))


def _feed(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))


class DecoderLayer(nn.Module):
    """Norms before attention and feed-forward: GPT's, and ViT's if not causal."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.feed = Attention(hidden, heads, causal), _feed(hidden)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before(x))
        return x + self.feed(self.between(x))


class BertLayer(nn.Module):
    """Norms after attention and feed-forward."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.between, self.after = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.feed = Attention(hidden, heads, causal=False), _feed(hidden)

    def forward(self, x: Any) -> Any:
        x = self.between(x + self.attention(x))
        return self.after(x + self.feed(x))


class XlnetLayer(nn.Module):
    """As BERT's, with scores for relative positions from a fifth matrix."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.inside, self.relative, self.heads = BertLayer(hidden, heads), nn.Linear(hidden, hidden), heads

    def forward(self, x: Any) -> Any:
        tokens, hidden = x.shape[1:]
        angles = torch.arange(2 * tokens, device=x.device, dtype=x.dtype)[:, None].expand(-1, hidden).sin()
        keys = self.relative(angles).unflatten(-1, (self.heads, -1)).permute(1, 2, 0)  # heads x width x 2 tokens
        queries = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = (queries @ keys).flatten(2)[..., tokens:].unflatten(-1, (tokens, -1))  # each row one place further on
        mask = scores[..., :tokens] * (hidden // self.heads) ** -0.5
        inside = self.inside
        x = inside.between(x + inside.attention(x, mask))
        return inside.after(x + inside.feed(x))


class SpanHead(nn.Module):
    """Scores of each token as the first and the last one of an answer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scores = nn.Linear(hidden, 2)

    def forward(self, x: Any) -> Any:
        return self.scores(x).transpose(1, 2)


class WordHead(nn.Module):
    """Scores of all words, with the embedding's matrix. norm: applied before it; None: none."""

    def __init__(self, embedding: Embedding, norm: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.weight = norm, embedding.words.weight

    def forward(self, x: Any) -> Any:
        x = x[0] if isinstance(x, tuple) else x
        return functional.linear(x if self.norm is None else self.norm(x), self.weight)


class _T5Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, inner = heads, 128 * heads
        self.q, self.k, self.v = (nn.Linear(hidden, inner, bias=False) for _ in range(3))
        self.out = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Any, memory: Any, causal: bool) -> Any:
        return self.out(_attend(self.q(x), self.k(memory), self.v(memory), self.heads, causal))


class T5Encoder(nn.Module):
    def __init__(self, hidden: int, heads: int, feed: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = _T5Attention(hidden, heads)
        self.feed = nn.Sequential(nn.Linear(hidden, feed, bias=False), nn.ReLU(), nn.Linear(feed, hidden, bias=False))

    def forward(self, x: Any) -> Any:
        normed = self.before(x)
        x = x + self.attention(normed, normed, causal=False)
        return x + self.feed(self.between(x))


class T5Decoder(T5Encoder):
    """Takes and returns (its tokens, the encoder's output); the first decoder uses its input for both."""

    def __init__(self, hidden: int, heads: int, feed: int) -> None:
        super().__init__(hidden, heads, feed)
        self.middle, self.cross = nn.RMSNorm(hidden), _T5Attention(hidden, heads)

    def forward(self, x: Any) -> Any:
        x, memory = x if isinstance(x, tuple) else (x, x)
        normed = self.before(x)
        x = x + self.attention(normed, normed, causal=True)
        x = x + self.cross(self.middle(x), memory, causal=False)
        return x + self.feed(self.between(x)), memory


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, feed: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, feed, bias=False), nn.Linear(hidden, feed, bias=False)
        self.down = nn.Linear(feed, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Two of eight for each token. All experts get the same number of tokens, so that the host need not query it."""

    def __init__(self, hidden: int, feed: int, experts: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.router, self.chosen = nn.Linear(hidden, experts, bias=False), chosen
        self.experts = nn.ModuleList(Gated(hidden, feed) for _ in range(experts))

    def forward(self, x: Any) -> Any:
        flat = x.flatten(0, -2)
        weights, choice = self.router(flat).softmax(-1).topk(self.chosen, -1)
        order = choice.flatten().argsort()
        source = order // self.chosen
        parts = flat[source].tensor_split(len(self.experts))
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.zeros_like(flat).index_add(0, source, done * weights.flatten()[order, None]).view_as(x)


class LlamaLayer(nn.Module):
    """Grouped queries (``pairs`` key-value heads), rotary positions; ``feed``: its feed-forward."""

    def __init__(self, hidden: int, heads: int, pairs: int, tokens: int, feed: nn.Module) -> None:
        super().__init__()
        self.heads, width = heads, hidden // heads
        self.before, self.between, self.feed = nn.RMSNorm(hidden), nn.RMSNorm(hidden), feed
        self.q, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k, self.v = (nn.Linear(hidden, pairs * width, bias=False) for _ in range(2))
        angles = torch.outer(torch.arange(tokens), 500_000.0 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def _rotate(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * self.cosine + torch.cat((-second, first), -1) * self.sine

    def forward(self, x: Any) -> Any:
        y = self.before(x)
        x = x + self.out(_attend(self.q(y), self.k(y), self.v(y), self.heads, True, rotate=self._rotate))
        return x + self.feed(self.between(x))


class LlamaHead(nn.Module):
    """The last norm, and scores of all words with a matrix of its own."""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.scores = nn.RMSNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, x: Any) -> Any:
        return self.scores(self.norm(x))


class Patches(nn.Module):
    """Patches of 16 x 16 pixels, with a class token in front."""

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.places = nn.Parameter(torch.zeros(1, (size // 16) ** 2 + 1, hidden))

    def forward(self, images: Any) -> Any:
        x = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.places


class Pooled(nn.Module):
    """The last norm, and class scores of the first token."""

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.norm, self.classes = nn.LayerNorm(hidden), nn.Linear(hidden, classes)

    def forward(self, x: Any) -> Any:
        return self.classes(self.norm(x)[:, 0])
