"""One decode step in which tokens leave at different layers, for any rule that says when.

Apart, because the batch is the hard part and is the same for every rule: rows that left have their
residual stream copied upwards (every skipped layer writes keys and values of it, by its own norm
and projections; CALM, section 3.3), and the others go on. Not here: the rule
(``methods/<name>/``), measures of confidence (``confidence.py``).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from methods.engine.cache import KVCache, Positions, index_of
from methods.engine.inference import InferenceModel


class Answer(NamedTuple):
    """What a rule says of the rows that it was asked about.

    Attributes:
        leaves: (B',) bool.
        logits: (B', 1, V) behind this layer, if the rule had to compute them: those of a row that
            leaves are then not computed again.
    """

    leaves: Tensor
    logits: Tensor | None = None


# (depth, x, x before this layer, positions, rows of the batch) to an Answer, or None where nobody
# may leave. depth counts the layers run, from 1; x is (B', 1, D).
Rule = Callable[[int, Tensor, Tensor, Positions, Sequence[int]], Answer | None]


class Left(NamedTuple):
    """Where the rows left.

    Attributes:
        depths: layers that each row's own rule asked for.
        run: layers that ran for each row.
        logits: (B, 1, V), each row's behind the layer it left.
    """

    depths: list[int]
    run: list[int]
    logits: Tensor


def leave_singly(
    model: InferenceModel, x: Tensor, positions: Positions, cache: KVCache, rule: Rule
) -> Left:
    """Each row leaves on its own; the layers above run on the rows that are left.

    The host learns who leaves once at each depth at which the rule answers.
    """
    num_layers, all_rows = model.shape.num_layers, list(range(len(x)))
    depths = [num_layers] * len(x)
    staying, at = all_rows, positions
    gone: list[int] = []
    gone_x, gone_at = x, positions
    chosen: list[_Part] = []
    for layer in range(num_layers):
        depth, before = layer + 1, x
        if staying:
            x = model.block(layer, x, at, cache)
        if gone:
            model.write_kv(layer, gone_x, gone_at, cache)
        answer = rule(depth, x, before, at, staying) if staying and depth < num_layers else None
        leaves = [] if answer is None else answer.leaves.tolist()
        if answer is None or not any(leaves):
            continue
        out = [index for index, leave in enumerate(leaves) if leave]
        left, leaving = [staying[index] for index in out], index_of(out, x.device)
        for row in left:
            depths[row] = depth
        if answer.logits is not None:
            chosen.append((left, answer.logits[leaving]))
        gone, gone_x = _joined([*([(gone, gone_x)] if gone else []), (left, x[leaving])])
        gone_at = positions.of_rows(gone)
        on = [index for index, leave in enumerate(leaves) if not leave]
        staying = [staying[index] for index in on]
        if staying:
            x, at = x[index_of(on, x.device)], positions.of_rows(staying)
    if chosen:
        # What the rule had to compute is not computed again.
        last = [(staying, model.head(x, at))] if staying else []
        return Left(depths, depths, _joined(chosen + last)[1])
    states = [(gone, gone_x)] if gone else []
    _, states_x = _joined(states + ([(staying, x)] if staying else []))
    return Left(depths, depths, model.head(states_x, positions))


def leave_together(
    model: InferenceModel,
    x: Tensor,
    positions: Positions,
    cache: KVCache,
    rule: Rule,
    live: Tensor | None,
) -> Left:
    """The batch leaves as one rectangle, once every live row may.

    Args:
        live: (B,) bool: rows that must agree; None for all.
    """
    num_layers, rows = model.shape.num_layers, list(range(len(x)))
    depths = [num_layers] * len(x)
    for layer in range(num_layers):
        depth, before = layer + 1, x
        x = model.block(layer, x, positions, cache)
        answer = rule(depth, x, before, positions, rows) if depth < num_layers else None
        if answer is None:
            continue
        agrees = answer.leaves if live is None else answer.leaves | ~live
        # One read for both: who would have left by its own rule, and who lets the batch go.
        own, agreed = torch.stack((answer.leaves, agrees)).tolist()
        depths = [
            depth if leave and found == num_layers else found
            for leave, found in zip(own, depths, strict=True)
        ]
        if all(agreed):
            for above in range(depth, num_layers):
                model.write_kv(above, x, positions, cache)
            logits = model.head(x, positions) if answer.logits is None else answer.logits
            return Left([min(each, depth) for each in depths], [depth] * len(x), logits)
    return Left(depths, [num_layers] * len(x), model.head(x, positions))


# Rows of the batch, and a tensor of theirs, (B', ...).
_Part = tuple[list[int], Tensor]


def _joined(parts: Sequence[_Part]) -> _Part:
    """Parts of the batch as one, in ascending order of rows."""
    if len(parts) == 1:
        return parts[0]
    rows = [row for of, _ in parts for row in of]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    joined = torch.cat([tensor for _, tensor in parts])
    return [rows[index] for index in order], joined[index_of(order, joined.device)]
