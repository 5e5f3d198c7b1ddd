"""Weights in inference form: fused, cast, on a CPU laid out for its kernels, as plain operations.

Apart from the primitives that use them (``inference.py``), and from ``transformer.py``, which
training sees. Not here: the layouts (``packing.py``).
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from methods.engine.layer import Operation
from methods.engine.packing import bind_linear, bind_norm
from methods.engine.shape import POSITION_OFFSET
from methods.engine.transformer import Block, Transformer


@dataclass(frozen=True, slots=True)
class Options:
    """How weights are held; stands in every record.

    Attributes:
        dtype: of weights, residual stream and cache.
        device: where they lie.
        packed: lay matrices out for the CPU's kernels, by size and number of rows.
        rows: rows of a batch that the layout is chosen for.
        attention: of few queries, as the fused kernel (``sdpa``) or as batched ``products``.
        compiled: blocks of decode steps as compiled functions; not with packed weights.
        cuda_graphs: these blocks, compiled or not, as recorded graphs.
        checked_cache: refuse to read unwritten slots (tests).
    """

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    packed: bool = True
    rows: int = 1
    attention: Literal["sdpa", "products"] = "sdpa"
    compiled: bool = False
    cuda_graphs: bool = False
    checked_cache: bool = False

    def __post_init__(self) -> None:
        if self.compiled and self.packed and self.device == "cpu":
            raise ValueError("compiled blocks take plain weights: packed=False")

    @property
    def key_bucket(self) -> int | None:
        """See ``KVCache``: a form for each length is too many; products like few of them, too."""
        if self.compiled or self.cuda_graphs:
            return 64
        return 32 if self.attention == "products" else None


def best_attention(device_type: str, dtype: torch.dtype, rows: int) -> Literal["sdpa", "products"]:
    """Which kernels attend for few queries: the faster ones as measured (docs/measurement.md)."""
    slow = device_type == "cpu" and dtype == torch.bfloat16
    return "products" if slow and rows > 1 else "sdpa"


@dataclass(frozen=True, slots=True)
class BoundBlock:
    """One layer's weights as operations (``layer.LayerWeights``), and its K/V part alone."""

    attention_norm: Operation
    qkv: Operation
    out: Operation
    mlp_norm: Operation
    up: Operation
    down: Operation
    kv: Operation


@dataclass(frozen=True, slots=True)
class Bound:
    """All weights of a model.

    Attributes:
        blocks: by layer.
        embedding: (V, embed_width).
        position_embedding: (positions, D) of learned positions, or None.
        project_in: embedding to residual stream, where their widths differ.
        project_out: and back.
        final_norm: before the head, or None.
        lm_head: (..., embed_width) to (..., V).
    """

    blocks: list[BoundBlock]
    embedding: Tensor
    position_embedding: Tensor | None
    project_in: Operation | None
    project_out: Operation | None
    final_norm: Operation | None
    lm_head: Operation


@torch.no_grad()
def bind(transformer: Transformer, options: Options, *, consume: bool) -> Bound:
    """The inference form of a transformer's weights; shared where neither cast nor laid out anew.

    Args:
        transformer: the parameters.
        options: how they are held.
        consume: empty them block by block as they are bound, so that a cast or packed model is
            never held twice; the transformer is of no use afterwards.
    """
    shape, cast = transformer.shape, partial(_cast, options)
    blocks = []
    for block in transformer.blocks:
        blocks.append(_block(block, options))  # type: ignore[arg-type]  # ModuleList yields Module
        if consume:
            _empty(block)
    embedding, positions = cast(transformer.embedding.weight), None
    if shape.positions == "learned":
        positions = cast(transformer.position_embedding.weight[POSITION_OFFSET:])
    projects = shape.projects_embedding
    head = embedding if shape.tied_embeddings else cast(transformer.lm_head.weight)
    bound = Bound(
        blocks=blocks,
        embedding=embedding,
        position_embedding=positions,
        project_in=_linear(transformer.project_in, options) if projects else None,
        project_out=_linear(transformer.project_out, options) if projects else None,
        final_norm=bind_norm(transformer.final_norm, cast) if shape.final_norm else None,
        lm_head=bind_linear(head, None, options.packed, options.rows),
    )
    if consume:
        _empty(transformer)
    return bound


def _block(block: Block, options: Options) -> BoundBlock:
    queries, cast = block.shape.query_width, partial(_cast, options)
    weight = cast(block.qkv.weight)
    bias = None if block.qkv.bias is None else cast(block.qkv.bias)
    kv_bias = None if bias is None else bias[queries:]
    return BoundBlock(
        attention_norm=bind_norm(block.attention_norm, cast),
        qkv=bind_linear(weight, bias, options.packed, options.rows),
        out=_linear(block.out, options),
        mlp_norm=bind_norm(block.mlp_norm, cast),
        up=_linear(block.up, options),
        down=_linear(block.down, options),
        kv=bind_linear(weight[queries:], kv_bias, options.packed, options.rows),
    )


def _linear(module: torch.nn.Linear, options: Options) -> Operation:
    bias = None if module.bias is None else _cast(options, module.bias)
    return bind_linear(_cast(options, module.weight), bias, options.packed, options.rows)


def _cast(options: Options, tensor: Tensor) -> Tensor:
    return tensor.detach().to(device=options.device, dtype=options.dtype).contiguous()


def _empty(module: torch.nn.Module) -> None:
    """Lets go of a module's parameters; those that were bound without a copy live on."""
    for parameter in module.parameters():
        parameter.data = parameter.data.new_empty(0)
