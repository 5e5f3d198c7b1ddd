"""What a model of the transformers library runs, charged to the same ledger as our own engine.

Apart, because hooks cost time: they are set for a pass of its own, which nobody clocks. Not here:
how the library decodes (``hf.py``).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from methods.engine.hf import HfModel, Request
from methods.engine.ledger import Extent, Ledger


class _Charger:
    """Charges the calls of a model's modules; one rectangle for all layers of a forward pass."""

    def __init__(self, ledger: Ledger, lengths: tuple[int, ...]) -> None:
        self.ledger, self.lengths = ledger, lengths
        self.longest = max(lengths)
        self.extent = Extent(len(lengths), 0, 0, None, lengths)

    def forward(self, _: nn.Module, __: Any, named: dict[str, Any]) -> None:  # noqa: ANN401  # a hook's arguments
        """A forward pass begins: the prompts', a step's, or a draft's over a cache of its own."""
        rows, new = named["input_ids"].shape
        past = 0 if named["cache"] is None else int(named["cache"].get_seq_length())
        pads = [self.longest - length for length in self.lengths]
        # Pads stand on the left, so the first pass alone computes any.
        own_new = None if past or not any(pads) else tuple(new - pad for pad in pads)
        own_keys = tuple(past + new - pad for pad in pads)
        self.extent = Extent(rows, new, past + new, own_new, own_keys)
        self.ledger.charge("embed", -1, self.extent)

    def layer(self, index: int, *_: Any) -> None:  # noqa: ANN401  # a hook's arguments
        """A layer of the forward pass."""
        self.ledger.charge("block", index, self.extent)

    def head(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        """The head, at as many positions as it was asked for."""
        rows, new, _width = given[0].shape
        self.ledger.charge("head", -1, Extent(rows, new, 0, None, (0,) * rows))


@contextmanager
def charged(
    model: HfModel, request: Request, ledger: Ledger, see: Callable[[Tensor], object]
) -> Iterator[None]:
    """Charges whatever the model runs within, drafts too; the caller closes the rounds.

    Args:
        model: hooked within, and left as found.
        request: that is decoded.
        ledger: charged.
        see: shown all logits, (B, T, V).
    """
    charger = _Charger(ledger, request.lengths)

    def shown(_: nn.Module, __: object, logits: Tensor) -> None:
        see(logits)

    with ExitStack() as hooks:
        decoder: nn.Module = model.decoder
        forward = decoder.register_forward_pre_hook(charger.forward, with_kwargs=True)
        hooks.callback(forward.remove)
        for index, layer in enumerate(model.layers):
            hook = partial(charger.layer, index)
            hooks.callback(layer.register_forward_pre_hook(hook).remove)
        hooks.callback(model.head.register_forward_pre_hook(charger.head).remove)
        hooks.callback(model.head.register_forward_hook(shown).remove)
        yield
