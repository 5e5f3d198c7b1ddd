"""Transformer: the parameters, and the teacher-forced pass that objectives are made of.

Apart from ``inference.py``, because gradients need modules that a distributed wrapper can see,
while decoding needs lean, fused, cast weights. Not here: the mathematics of a layer
(``layer.py``), files (``checkpoint.py``).
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from methods.engine.layer import (
    attention,
    attention_sublayer,
    merge_heads,
    mlp_sublayer,
    query_key_value,
    rope_angles,
    rope_frequencies,
)
from methods.engine.shape import POSITION_OFFSET, Shape


def _norm(shape: Shape) -> nn.Module:
    if shape.norm == "layernorm":
        return nn.LayerNorm(shape.width, eps=shape.norm_eps)
    return nn.RMSNorm(shape.width, eps=shape.norm_eps)


class Block(nn.Module):
    """One layer. Called as a module, so that every wrapper of a training run sees its gradients."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attention_norm = _norm(shape)
        self.qkv = nn.Linear(
            shape.width, shape.query_width + 2 * shape.kv_width, bias=shape.qkv_bias
        )
        self.out = nn.Linear(shape.query_width, shape.width, bias=shape.out_bias)
        self.mlp_norm = _norm(shape)
        hidden = shape.ffn_width * (2 if shape.gated_mlp else 1)
        self.up = nn.Linear(shape.width, hidden, bias=shape.mlp_bias)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=shape.mlp_bias)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """One layer over whole sequences, causal; (B, T, D) to (B, T, D).

        Rows are right-padded: under the causal mask no token sees the pads behind it.

        Args:
            x: residual stream at positions 0..T-1.
            rope: cos and sin of at least T positions, for rotary families.
        """

        def attend(qkv: Tensor) -> Tensor:
            angles = None
            if rope is not None:
                cos, sin = (part[: qkv.shape[1]].to(qkv.dtype) for part in rope)
                angles = cos, sin
            q, kv = query_key_value(self.shape, qkv, angles)
            return merge_heads(attention(self.shape, q, kv, None, causal=True))

        return mlp_sublayer(self, self.shape, attention_sublayer(self, self.shape, x, attend))


class Transformer(nn.Module):
    """All parameters of a model, and its pieces for a teacher-forced pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.embed_width)
        if shape.positions == "learned":
            table = shape.max_positions + POSITION_OFFSET
            self.position_embedding = nn.Embedding(table, shape.width)
        if shape.projects_embedding:
            self.project_in = nn.Linear(shape.embed_width, shape.width, bias=False)
            self.project_out = nn.Linear(shape.width, shape.embed_width, bias=False)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        if shape.final_norm:
            self.final_norm = _norm(shape)
        # A tied head is the embedding itself: one parameter, stored once.
        if not shape.tied_embeddings:
            self.lm_head = nn.Linear(shape.embed_width, shape.vocab_size, bias=False)

    @property
    def head_weight(self) -> Tensor:
        """The matrix of the LM head, (V, embed_width)."""
        return self.embedding.weight if self.shape.tied_embeddings else self.lm_head.weight

    def embed(self, ids: Tensor) -> Tensor:
        """Token and position embeddings of whole sequences; (B, T) to (B, T, D)."""
        x: Tensor = self.embedding(ids)
        if self.shape.projects_embedding:
            x = self.project_in(x)
        if self.shape.positions == "learned":
            # Positions are added at full width, after the projection.
            rows = torch.arange(ids.shape[1], device=ids.device) + POSITION_OFFSET
            x = x + self.position_embedding(rows)
        return x

    def rope(self, length: int) -> tuple[Tensor, Tensor] | None:
        """Cos and sin for ``Block.forward``; None where positions are learned."""
        if self.shape.positions == "learned":
            return None
        positions = torch.arange(length, device=self.embedding.weight.device)
        return rope_angles(rope_frequencies(self.shape).to(positions.device), positions)

    def head(self, x: Tensor) -> Tensor:
        """The one exit head of every layer: final norm (or none), projection, LM head."""
        if self.shape.final_norm:
            x = self.final_norm(x)
        if self.shape.projects_embedding:
            x = self.project_out(x)
        return functional.linear(x, self.head_weight)

    def target_loss(
        self, x: Tensor, ids: Tensor, prompt_lengths: Tensor, lengths: Tensor
    ) -> Tensor:
        """Summed next-token cross-entropy over the targets, in float32.

        The head runs at the judged positions only.

        Args:
            x: residual stream after a layer, (B, T, D).
            ids: (B, T), right-padded.
            prompt_lengths: (B,), tokens before each target.
            lengths: (B,), tokens in all.
        """
        at = torch.arange(ids.shape[1] - 1, device=ids.device)
        judged = (at >= prompt_lengths[:, None] - 1) & (at < lengths[:, None] - 1)
        logits = self.head(x[:, :-1][judged]).float()
        return functional.cross_entropy(logits, ids[:, 1:][judged], reduction="sum")

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of every position with every layer; (B, T) to (B, T, V)."""
        x, rope = self.embed(ids), self.rope(ids.shape[1])
        for block in self.blocks:
            x = block(x, rope)
        return self.head(x)

    @torch.no_grad()
    def initialise(self, seed: int) -> "Transformer":
        """Random weights as OPT's authors drew them: normal, deviation 0.02, biases zero.

        The output matrices of the two branches are scaled by 1 / sqrt(2 L), which keeps the
        residual stream's size independent of depth. The generator is this call's own.
        """
        generator = torch.Generator(device="cpu").manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            deviation = 0.02
            if name.endswith(("out.weight", "down.weight")):
                deviation /= (2 * self.shape.num_layers) ** 0.5
            draw = torch.empty(parameter.shape).normal_(0.0, deviation, generator=generator)
            parameter.copy_(draw)
        return self
