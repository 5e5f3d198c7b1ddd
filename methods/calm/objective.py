"""CALM's two stages of training (arXiv 2207.07061, section 3.5).

Apart, because training sees whole sequences. Both stages see states of full depth: no state is
copied in training, a mismatch that the paper accepts and found harmless. Not here: the loop
(``bench/training.py``).
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from methods.contract import Batch
from methods.engine.transformer import Transformer


def weighted_loss(model: Transformer, batch: Batch) -> Tensor:
    """Stage 1: next-token losses of all layers, weighted i / sum(1..L) for layer i (equation 6)."""
    x, rope = model.embed(batch.ids), model.rope(batch.ids.shape[1])
    weights = layer_weights(len(model.blocks))
    total = x.new_zeros((), dtype=torch.float32)
    targets = (batch.ids, batch.prompt_lengths, batch.lengths)
    for block, weight in zip(model.blocks, weights, strict=True):
        x = block(x, rope)
        # The head is computed again on the way back: logits of one layer at a time are held.
        total = total + weight * checkpoint(model.target_loss, x, *targets, use_reentrant=False)
    return total


def layer_weights(num_layers: int) -> list[float]:
    """I / sum(1..L) for layers 1 to L; they sum to 1."""
    whole = num_layers * (num_layers + 1) / 2
    return [layer / whole for layer in range(1, num_layers + 1)]


class LinearClassifier(nn.Module):
    """Logit that a layer's token is the last layer's, of the raw stream; one for all layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (...)."""
        logit: Tensor = self.linear(x.float())[..., 0]
        return logit

    def tensors(self) -> dict[str, Tensor]:
        """As ``methods.engine.confidence.Classifier`` takes them."""
        return {"weight": self.linear.weight.detach()[0], "bias": self.linear.bias.detach()[0]}


def agreement_loss(model: Transformer, batch: Batch, classifier: nn.Module) -> Tensor:
    """Stage 2: does layer i choose the last layer's token? Binary cross-entropy, weights frozen.

    Unweighted mean over layers 1 to L-1, summed over target tokens. Labels are of teacher forcing
    at full depth.
    """
    at = torch.arange(batch.ids.shape[1] - 1, device=batch.ids.device)
    judged = (at >= batch.prompt_lengths[:, None] - 1) & (at < batch.lengths[:, None] - 1)
    states, choices = [], []
    with torch.no_grad():
        x, rope = model.embed(batch.ids), model.rope(batch.ids.shape[1])
        for block in model.blocks:
            x = block(x, rope)
            states.append(x[:, :-1][judged])
            choices.append(model.head(states[-1]).argmax(dim=-1))
    losses = [
        functional.binary_cross_entropy_with_logits(
            classifier(state), (choice == choices[-1]).float(), reduction="sum"
        )
        for state, choice in zip(states[:-1], choices[:-1], strict=True)
    ]
    return torch.stack(losses).sum() / len(losses)
