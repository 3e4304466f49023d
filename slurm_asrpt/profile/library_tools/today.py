"""Models that people train today, layer by layer, by the counting rules of ``models.py``. Mini-batches are assumptions.

The attention of the long ones keeps no scores, it computes them again (Dao et al., FlashAttention, NeurIPS 2022).
"""

from __future__ import annotations

from dataclasses import replace

from slurm_asrpt.profile.library_tools.models import Kind, Layer, Model, block, embedding, kept_values, word_head

CONTEXT = 4096
"""Tokens of a sequence; a batch of 32 sequences is 131,072 tokens."""


def _decoder(name: str, hidden: int, heads: int, pairs: int, feed: int) -> Layer:
    """Grouped-query attention with ``pairs`` key-value heads and a gated feed-forward; two RMS norms, no biases."""
    inner = hidden * pairs // heads
    matrices = 2 * hidden**2 + 2 * hidden * inner + 3 * hidden * feed
    return block(name, hidden, 0, matrices, 2 * hidden, CONTEXT)


def _mixture(name: str, hidden: int, heads: int, pairs: int, feed: int) -> Layer:
    """As ``_decoder`` with eight experts for the feed-forward, of which a router gives each token to two."""
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


def _head(hidden: int, vocabulary: int) -> Layer:
    """A word head with a matrix of its own, and the last norm."""
    tied = word_head(hidden, vocabulary, 0, CONTEXT)
    return replace(tied, params=vocabulary * hidden + hidden, tied=0)


def _llama(size: str, count: int, hidden: int, heads: int, feed: int) -> Model:
    layers = [embedding(128256, hidden, CONTEXT)]
    layers += [_decoder(f"layer{i}", hidden, heads, 8, feed) for i in range(1, count + 1)]
    layers.append(_head(hidden, 128256))
    source = f"Dubey et al., The Llama 3 Herd of Models, 2024, Table 3; {count} layers of width {hidden}, 4,096 tokens"
    return Model(f"llama-3-{size.lower()}", f"Llama 3 {size}", 32, tuple(layers), source, Kind.WIDE)


def _mixtral() -> Model:
    hidden, vocabulary = 4096, 32000
    layers = [embedding(vocabulary, hidden, CONTEXT)]
    layers += [_mixture(f"layer{i}", hidden, 32, 8, 14336) for i in range(1, 33)]
    layers.append(_head(hidden, vocabulary))
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


MODELS = (_llama("8B", 32, 4096, 32, 14336), _llama("70B", 80, 8192, 64, 28672), _vit_large(), _mixtral())
