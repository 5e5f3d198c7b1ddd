"""Confidence of an intermediate layer, one number in [0, 1] a row; the same for every method.

CALM, arXiv 2207.07061, section 3.1. Apart, because early exit, the stop of a draft and calibration
ask the same question. In float32 throughout: a difference of two bfloat16 probabilities can be
exactly 1. Not here: thresholds, and what is done about an answer (``methods/<name>/``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

# Beside a checkpoint: the exit classifier that was trained on it.
CLASSIFIER_FILE = "exit_classifier.safetensors"


def softmax_gap(logits: Tensor) -> Tensor:
    """Softmax response: the most likely token's probability less the next one's.

    Args:
        logits: (B, 1, V).

    Returns:
        (B,), float32.
    """
    logits = logits[:, -1].float()
    top = (logits.topk(2, dim=-1).values - logits.logsumexp(dim=-1, keepdim=True)).exp()
    return top[:, 0] - top[:, 1]


def state_cosine(x: Tensor, before: Tensor) -> Tensor:
    """Saturation: the cosine of a token's residual stream after this layer and before it.

    Args:
        x: (B, 1, D), the raw stream, not normed.
        before: likewise, one layer earlier.

    Returns:
        (B,), float32; 0 where the two point apart, so that a threshold of 0 is always reached.
    """
    cosine = functional.cosine_similarity(x[:, -1].float(), before[:, -1].float(), dim=-1)
    return cosine.clamp(0, 1)


@dataclass(frozen=True, slots=True)
class Classifier:
    """A linear classifier of the raw residual stream, one for all layers: D + 1 parameters.

    Attributes:
        weight: (D,), float32.
        bias: (), float32.
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], device: torch.device) -> "Classifier":
        """From the tensors of ``CLASSIFIER_FILE``."""
        return cls(*(tensors[name].to(device, torch.float32) for name in ("weight", "bias")))

    def __call__(self, x: Tensor) -> Tensor:
        """Probability that this layer's token is the last layer's; (B, 1, D) to (B,)."""
        return (x[:, -1].float() @ self.weight + self.bias).sigmoid()
