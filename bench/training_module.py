"""The module that training wraps: a method's objective inside one ``forward``.

Apart, because distributed wrappers see gradients only of what ``forward`` calls. Not here: the loop
(``training.py``).
"""

from dataclasses import replace

from torch import Tensor, nn

from methods.contract import Batch, HasCompanion, Method, Progress
from methods.engine.transformer import Transformer


class TrainingModule(nn.Module):
    """A transformer under a method's objective.

    A method with a companion trains that alone: the transformer is frozen and in evaluation mode.

    Attributes:
        progress: set by the loop as each step begins; ``forward`` counts its micro-batches.
    """

    # The loss below is divided by the tokens of the whole step, so that the Trainer must neither
    # divide by accumulation steps nor average rows of unequal length.
    accepts_loss_kwargs = True

    def __init__(self, transformer: Transformer, method: Method) -> None:
        super().__init__()
        self.transformer = transformer
        self.method = method
        self.progress = Progress(0, 1)
        found = method.companion() if isinstance(method, HasCompanion) else None
        # As a module of this one, so that optimiser and distributed wrappers see its parameters.
        self.companion = found if isinstance(found, nn.Module) else None
        if self.companion is not None:
            transformer.requires_grad_(False)

    def train(self, mode: bool = True) -> "TrainingModule":
        """As of any module, but that a frozen transformer stays in evaluation mode."""
        super().train(mode)
        if self.companion is not None:
            self.transformer.eval()
        return self

    def companion_tensors(self) -> dict[str, Tensor]:
        """The companion's parameters as they are saved; empty without one."""
        found = self.method.companion() if isinstance(self.method, HasCompanion) else None
        return {} if found is None else {k: v.contiguous() for k, v in found.tensors().items()}

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
        self.progress = replace(self.progress, micro_batch=self.progress.micro_batch + 1)
        if num_items_in_batch is None:
            num_items_in_batch = (lengths - prompt_lengths).sum()
        return loss.total / num_items_in_batch
