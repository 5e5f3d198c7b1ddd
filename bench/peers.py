"""Drives a peer: another library's one call, under the same clock, stop rule, cut and count.

Apart from ``decoding.py``, because a peer yields no rounds: they are made of the steps that it
tells of, once the clock has stopped. What it ran is charged in a pass of its own, once a batch, for
hooks cost time. The first Round is the first step whole: a peer that drafts may give several tokens
there, and none of them is there sooner. Not here: how the library decodes
(``methods/engine/hf.py``).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from bench.decoding import Decoded, StopRule, counted
from bench.errors import InvalidRunError
from bench.meters.clock import Stopwatch
from bench.meters.device import AnyDevice
from methods.contract import Peer, Round
from methods.engine.cache import Prompts
from methods.engine.hf import HfModel, Request
from methods.engine.hf_ledger import charged
from methods.engine.ledger import Ledger
from methods.engine.sampling import Chooser


class PeerDecoder:
    """As ``decoding.decode``, for one leg; remembers what its latest batch was charged with."""

    def __init__(self) -> None:
        self._prompts: Prompts | None = None
        self._rule: StopRule | None = None
        self._ledger = Ledger()
        self._columns: list[int] = []
        self._non_finite: list[int] = []

    def __call__(
        self,
        method: Peer,
        model: HfModel,
        prompts: Prompts,
        rule: StopRule,
        chooser: Chooser,
        device: AnyDevice,
        *,
        every_round: bool = False,
    ) -> Decoded:
        """Decodes a batch under a stop rule; the chooser's is greedy, which is the peer's own.

        Raises:
            InvalidRunError: if a second pass takes other steps, for it is the one that is charged.
        """
        request = Request.of(prompts, rule.max_new_tokens, rule.stop_ids, model.shape)
        watch = Stopwatch(device, every_round=every_round)
        columns: list[int] = []

        def step(width: int) -> None:
            if columns:
                watch.round()
            else:
                watch.first_round()
            columns.append(width)

        watch.start()
        with torch.inference_mode():
            ids = method.generate(model, request, step)
        watch.stop()
        if self._prompts is not prompts or self._rule != rule:
            self._charge(method, model, request, chooser)
            self._prompts, self._rule = prompts, rule
        if columns != self._columns:
            raise InvalidRunError("A peer took other steps in a second pass over the same prompts")
        edges = [request.ids.shape[1], *columns]
        rounds = _rounds(ids, edges, self._ledger, model.shape.num_layers, drafts=method.drafts)
        decoded = counted(rounds, rule, self._ledger, watch, chooser)
        first = edges[1] - edges[0]
        return replace(
            decoded,
            non_finite_rows=self._non_finite,
            first_round=None if first == 1 else [min(first, len(row)) for row in decoded.ids],
        )

    def _charge(self, method: Peer, model: HfModel, request: Request, chooser: Chooser) -> None:
        """The pass that nobody clocks."""
        ledger, columns = Ledger(), list[int]()

        def step(width: int) -> None:
            ledger.close_round()
            columns.append(width)

        def see(logits: Tensor) -> None:
            chooser.choose(logits, 0)

        with torch.inference_mode(), charged(model, request, ledger, see):
            method.generate(model, request, step)
        self._ledger, self._columns = ledger, columns
        self._non_finite = chooser.non_finite_rows()


def _rounds(
    ids: Tensor, edges: Sequence[int], ledger: Ledger, num_layers: int, *, drafts: bool
) -> list[Round]:
    """A Round for each step.

    What ran beyond one pass of the model over the kept tokens (the drafts' layers, and all layers
    over rejected drafts) stands with a step's last token; in the first step it is not told apart
    from the prompts' pass and does not count.

    Args:
        ids: (B, columns), pads and prompts included.
        edges: columns before the first step, and after each.
        ledger: its rounds are the steps.
        num_layers: of the model.
        drafts: whether the steps verify drafted tokens.
    """
    rounds: list[Round] = []
    for (start, end), calls in zip(pairwise(edges), ledger.rounds(), strict=True):
        given = ids[:, start:end]
        latest = Round(given, num_layers)
        rounds.append(latest)
        if not drafts or len(rounds) == 1:
            continue
        ran = sum(extent.new for part, _, extent in calls if part == "block")
        layers = torch.full_like(given, num_layers)
        layers[:, -1] += ran - num_layers * given.shape[1]
        latest.layers_run = layers
        # The head looks at each drafted token and at the one before.
        looked = next(extent.new for part, _, extent in reversed(calls) if part == "head")
        latest.drafted = torch.full_like(given[:, 0], looked - 1)
        latest.accepted = torch.full_like(given[:, 0], given.shape[1] - 1)
    return rounds
