"""Shape: the numbers of an architecture, enough for blocks, FLOPs, memory and checks.

Apart, and without torch, so that a login node can count, check and plan. Not here: tensor names and
the keys of a config.json (``families.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The ``llama3`` frequency scaling of rotary positions."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of an architecture; a decoder-only transformer with one exit head."""

    family: Literal["opt", "llama", "qwen2"]
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    vocab_size: int
    max_positions: int
    # Width of the embedding and of the head's input; differs from `width` in OPT-350m only.
    embed_width: int
    norm: Literal["layernorm", "rmsnorm"]
    norm_eps: float
    norm_placement: Literal["pre", "post"]
    final_norm: bool
    activation: Literal["relu", "silu"]
    gated_mlp: bool
    # Of the q, k and v projections, of the attention's output, of the MLP's matrices.
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    positions: Literal["learned", "rotary"]
    rope_theta: float | None
    rope_scaling: RopeScaling | None
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def projects_embedding(self) -> bool:
        """Whether matrices stand between embedding and residual stream (OPT-350m)."""
        return self.embed_width != self.width

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied embedding counted once."""
        norm = self.width * (2 if self.norm == "layernorm" else 1)
        attention = self.width * (2 * self.query_width + 2 * self.kv_width)
        if self.qkv_bias:
            attention += self.query_width + 2 * self.kv_width
        if self.out_bias:
            attention += self.width
        mlp = (3 if self.gated_mlp else 2) * self.width * self.ffn_width
        if self.mlp_bias:
            mlp += self.ffn_width * (2 if self.gated_mlp else 1) + self.width
        total = self.num_layers * (attention + mlp + 2 * norm)
        total += self.vocab_size * self.embed_width * (1 if self.tied_embeddings else 2)
        if self.positions == "learned":
            total += (self.max_positions + POSITION_OFFSET) * self.width
        if self.projects_embedding:
            total += 2 * self.embed_width * self.width
        return total + (norm if self.final_norm else 0)


# OPT's position table starts with two unused rows: position p reads row p + 2.
POSITION_OFFSET = 2

_OPT: Mapping[str, object] = {
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "norm_placement": "pre",
    "activation": "relu",
    "gated_mlp": False,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "positions": "learned",
    "rope_theta": None,
    "rope_scaling": None,
    "tied_embeddings": True,
    "bos_token_id": None,
    "eos_token_ids": (),
    "pad_token_id": None,
}
_LLAMA: Mapping[str, object] = {
    "norm": "rmsnorm",
    "norm_eps": 1e-5,
    "norm_placement": "pre",
    "rope_theta": None,
    "activation": "silu",
    "gated_mlp": True,
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
    "positions": "rotary",
    "rope_scaling": None,
    "tied_embeddings": False,
    "bos_token_id": None,
    "eos_token_ids": (),
    "pad_token_id": None,
}
FAMILY_FIELDS: Mapping[str, Mapping[str, object]] = {
    "opt": _OPT,
    "llama": _LLAMA,
    "qwen2": {**_LLAMA, "norm_eps": 1e-6, "qkv_bias": True},
}


def complete_fields(given: Mapping[str, object]) -> dict[str, object]:
    """Fills the fields that follow from the family and from others.

    Args:
        given: at least ``family`` and the sizes; null stands for not given.

    Returns:
        Every field of ``Shape`` that can be derived, beside the given ones.
    """
    present = {name: value for name, value in given.items() if value is not None}
    fields = dict(FAMILY_FIELDS.get(str(given.get("family")), {})) | present
    width, heads = fields.get("width"), fields.get("num_heads")
    fields.setdefault("num_kv_heads", heads)
    fields.setdefault("embed_width", width)
    fields.setdefault("final_norm", fields.get("norm_placement") == "pre")
    if isinstance(width, int) and isinstance(heads, int) and heads > 0:
        fields.setdefault("head_dim", width // heads)
    if fields.get("positions") == "learned":
        fields |= {"rope_theta": None, "rope_scaling": None}
    return fields
