"""Ledger: what was really run, as the engine saw it, by call and by row.

Apart, so that no method reports its own cost: the engine's primitives charge here, the driver
marks the rounds, and the sums are taken after the clock has stopped. Not here: FLOPs and bytes
(``bench/costs.py``). Free of torch. All entries are host integers; charging forces no device
synchronisation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

# A block is its attention and its MLP; the two stand alone where a method skips the other.
Part = Literal["block", "attention", "mlp", "kv", "head", "embed"]


class Extent(NamedTuple):
    """The rectangle of one call, and each row's own part of it.

    Attributes:
        rows: rows that were computed.
        new: positions computed for every row.
        keys: slots attended by every query.
        own_new: positions that belong to each row; None where all of ``new`` do.
        own_keys: keys that each row's own last query may see.
    """

    rows: int
    new: int
    keys: int
    own_new: tuple[int, ...] | None
    own_keys: tuple[int, ...]


# One call of a primitive: part, layer (-1 for embedding and head), rectangle.
Call = tuple[Part, int, Extent]


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts from which the FLOPs of a shape follow; each is a sum of rows x positions.

    Attributes:
        attention_positions: positions through q, k, v and out projections.
        attended_pairs: (query, key) pairs of the attention rectangles.
        mlp_positions: positions through the MLP.
        kv_positions: positions whose keys and values alone were written (state copying).
        head_positions: positions through the exit head.
        embed_positions: positions through the embedding.
    """

    attention_positions: int = 0
    attended_pairs: int = 0
    mlp_positions: int = 0
    kv_positions: int = 0
    head_positions: int = 0
    embed_positions: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.attention_positions + other.attention_positions,
            self.attended_pairs + other.attended_pairs,
            self.mlp_positions + other.mlp_positions,
            self.kv_positions + other.kv_positions,
            self.head_positions + other.head_positions,
            self.embed_positions + other.embed_positions,
        )


_NUM_SUMS = len(fields(Sums))
_PAIRS = 1
# Which sums a call's positions are added to.
_SUMS_OF_PART: dict[Part, tuple[int, ...]] = {
    "block": (0, 2),
    "attention": (0,),
    "mlp": (2,),
    "kv": (3,),
    "head": (4,),
    "embed": (5,),
}


class Ledger:
    """The calls of one decode, divided into rounds."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.round_ends: list[int] = []

    def charge(self, part: Part, layer: int, extent: Extent) -> None:
        """Notes one call."""
        self.calls.append((part, layer, extent))

    def close_round(self) -> None:
        """Ends the current round: calls since the last end belong to it."""
        self.round_ends.append(len(self.calls))

    def rounds(self) -> list[list[Call]]:
        """The calls of each closed round."""
        starts = [0, *self.round_ends[:-1]]
        return [self.calls[a:b] for a, b in zip(starts, self.round_ends, strict=True)]

    def executed(self) -> list[Sums]:
        """Per round, the rectangles that ran: padded and finished rows included."""
        totals = []
        for calls in self.rounds():
            total = [0] * _NUM_SUMS
            for part, extent, layers in _runs(calls):
                positions = extent.rows * extent.new * len(layers)
                _add(total, part, positions, positions * extent.keys)
            totals.append(Sums(*total))
        return totals

    def required(
        self,
        live: Sequence[Sequence[int]],
        needed: Sequence[Sequence[int] | None],
    ) -> list[Sums]:
        """Per round, the same calls row by row: live rows, own positions, needed layers only.

        Args:
            live: per round, the rows that keep a token in it.
            needed: per round, how many of the layers that ran each row's own rule asked for
                (indexed by row, counted in the order in which they ran), or None for all.
        """
        totals = []
        for calls, rows, depths in zip(self.rounds(), live, needed, strict=True):
            total = [0] * _NUM_SUMS
            done, attended = 0, -1
            for part, extent, layers in _runs(calls):
                in_layer = part in ("block", "attention", "mlp")
                if part == "mlp" and layers[0] == attended:
                    # The rest of a layer that its attention has already counted.
                    done -= 1
                times = [len(layers)] * len(rows)
                if depths is not None and in_layer:
                    times = [min(max(depths[row] - done, 0), len(layers)) for row in rows]
                _add(total, part, *_own_part(extent, rows, times))
                done += len(layers) if in_layer else 0
                attended = layers[-1] if part == "attention" else -1
            totals.append(Sums(*total))
        return totals


def _runs(calls: Sequence[Call]) -> Iterator[tuple[Part, Extent, list[int]]]:
    """Consecutive calls of one part over one rectangle, with their layers."""
    start, num_calls = 0, len(calls)
    while start < num_calls:
        part, layer, extent = calls[start]
        layers, end = [layer], start + 1
        while end < num_calls and calls[end][2] is extent and calls[end][0] == part:
            layers.append(calls[end][1])
            end += 1
        yield part, extent, layers
        start = end


def _own_part(extent: Extent, rows: Sequence[int], times: Sequence[int]) -> tuple[int, int]:
    """Positions and (query, key) pairs that ``rows`` own, each taken ``times`` of its row."""
    if extent.own_new is None:
        own = [count * extent.new for count in times]
    else:
        own = [count * extent.own_new[row] for count, row in zip(times, rows, strict=True)]
    return sum(own), sum(n * extent.own_keys[row] for n, row in zip(own, rows, strict=True))


def _add(total: list[int], part: Part, positions: int, pairs: int) -> None:
    """Adds a run's positions, and its pairs where it attends, to ``total`` in place."""
    for index in _SUMS_OF_PART[part]:
        total[index] += positions
    if part in ("block", "attention"):
        total[_PAIRS] += pairs
