"""Packing: a linear layer or norm as the leanest operation this device has.

Apart, because layouts and kernels are a matter of the machine, not of the model. On a CPU the
matrices are laid out once for the kernel that serves their size and number of rows best (measured:
``docs/measurement.md``). Not here: any change of the numbers; every layout computes the same
product.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from methods.engine.layer import Operation

# From this many weights on, oneDNN's blocked layout wins in float32; below, its call overhead (some
# 15 us) outweighs the gain. In bfloat16 it wins at every size.
BLOCK_MIN_WEIGHTS = 256 * 1024
# The bfloat16 kernel for one or two rows reads large matrices more slowly than the one for four.
PAD_ROWS = 4
PAD_MIN_WEIGHTS = 2 * 1024 * 1024


def bind_linear(weight: Tensor, bias: Tensor | None, packed: bool, rows: int) -> Operation:
    """``x -> x @ weight.T + bias`` for weight (out, in).

    Args:
        weight: the matrix, already cast and placed.
        bias: (out,) or None.
        packed: choose a layout by dtype and size; on other devices than a CPU it changes nothing.
        rows: rows of the batches to come, for the kernel to lay out blocks for.
    """
    outputs, inputs = weight.shape
    if packed and weight.device.type == "cpu":
        small = weight.dtype == torch.float32 and weight.numel() < BLOCK_MIN_WEIGHTS
        if weight.dtype in (torch.float32, torch.bfloat16) and not small:
            return _blocked(weight, bias, rows)
        if small and outputs >= inputs:
            return _transposed(weight, bias)
    return Linear(weight, bias)


def _transposed(weight: Tensor, bias: Tensor | None) -> Operation:
    """A small wide matrix: its product is faster read by input rows."""
    columns = weight.t().contiguous()
    outputs = weight.shape[0]

    def operation(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        y = torch.mm(flat, columns) if bias is None else torch.addmm(bias, flat, columns)
        return y.view(*x.shape[:-1], outputs)

    return operation


def _blocked(weight: Tensor, bias: Tensor | None, rows: int) -> Operation:
    """OneDNN's prepacked linear, the one that inductor uses."""
    outputs = weight.shape[0]
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    linear: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default

    def operation(x: Tensor) -> Tensor:
        return linear(x, packed, bias, "none", [], "")

    if weight.dtype == torch.float32 or weight.numel() < PAD_MIN_WEIGHTS:
        return operation

    def padded(x: Tensor) -> Tensor:
        missing = PAD_ROWS - x.shape[0] * x.shape[1]
        if missing <= 0:
            return operation(x)
        y = operation(functional.pad(x.reshape(-1, x.shape[-1]), (0, 0, 0, missing)))
        return y[: PAD_ROWS - missing].view(*x.shape[:-1], outputs)

    return padded


@dataclass(frozen=True, slots=True)
class Linear:
    """The plain product, its tensors attributes: one compiled form serves all layers."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias``."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """LayerNorm over the last dimension."""

    weight: Tensor
    bias: Tensor
    size: tuple[int, ...]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """The norm of ``x``."""
        return functional.layer_norm(x, self.size, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """RMSNorm over the last dimension."""

    weight: Tensor
    size: tuple[int, ...]
    eps: float | None

    def __call__(self, x: Tensor) -> Tensor:
        """The norm of ``x``."""
        return functional.rms_norm(x, self.size, self.weight, self.eps)


def bind_norm(norm: nn.Module, cast: Callable[[Tensor], Tensor]) -> Operation:
    """A LayerNorm or RMSNorm as an operation, its weights cast."""
    if isinstance(norm, nn.LayerNorm):
        return LayerNorm(cast(norm.weight), cast(norm.bias), norm.normalized_shape, norm.eps)
    assert isinstance(norm, nn.RMSNorm), f"no inference form for {type(norm).__name__}"
    return RmsNorm(cast(norm.weight), norm.normalized_shape, norm.eps)
