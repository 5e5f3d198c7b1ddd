"""The module that training wraps: a method's objective inside one ``forward``.

Apart, because distributed wrappers see gradients only of what ``forward`` calls. Not here: the loop
(``training.py``).
"""

from torch import Tensor, nn

from methods.contract import Batch, Method
from methods.engine.transformer import Transformer


class TrainingModule(nn.Module):
    """A transformer under a method's objective.

    Attributes:
        progress: share of the steps done, 0..1; set by the loop, read by curricula.
    """

    # The loss below is divided by the tokens of the whole step, so that the Trainer must neither
    # divide by accumulation steps nor average rows of unequal length.
    accepts_loss_kwargs = True

    def __init__(self, transformer: Transformer, method: Method) -> None:
        super().__init__()
        self.transformer = transformer
        self.method = method
        self.progress = 0.0

    def forward(
        self,
        input_ids: Tensor,
        prompt_lengths: Tensor,
        lengths: Tensor,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The loss, summed over target tokens and divided by ``num_items_in_batch``.

        Args:
            input_ids: (B, T), right-padded.
            prompt_lengths: (B,).
            lengths: (B,).
            num_items_in_batch: target tokens of the whole optimiser step, over all micro-batches
                and processes; None for this call's own.
        """
        batch = Batch(input_ids, prompt_lengths, lengths)
        loss = self.method.objective(self.transformer, batch, self.progress)
        if num_items_in_batch is None:
            num_items_in_batch = (lengths - prompt_lengths).sum()
        return loss.total / num_items_in_batch
