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
Part = Literal["block", "attention", "mlp", "kv", "head", "embed", "check"]


class Extent(NamedTuple):
    """The rectangle of one call, and each row's own part of it.

    Attributes:
        rows: rows that were computed.
        new: positions computed for every row.
        keys: slots attended by every query.
        own_new: positions that belong to each row; None where all of ``new`` do.
        own_keys: keys that each row's own last query may see.
        members: the rows of the batch that were computed; None for all of them. The tuples above
            are of the whole batch either way.
    """

    rows: int
    new: int
    keys: int
    own_new: tuple[int, ...] | None
    own_keys: tuple[int, ...]
    members: tuple[int, ...] | None = None


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
        check_positions: positions through an exit check that needs no head: one product with a
            vector of the model's width.
    """

    attention_positions: int = 0
    attended_pairs: int = 0
    mlp_positions: int = 0
    kv_positions: int = 0
    head_positions: int = 0
    embed_positions: int = 0
    check_positions: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts from which the bytes that moved follow: a call reads its weights once for all rows.

    There is no required part of it: rows share the bytes of a call.

    Attributes:
        attention_calls: times that a layer's attention weights were read.
        mlp_calls: likewise its MLP.
        kv_calls: likewise its key and value projections alone.
        head_calls: likewise the exit head.
        embed_calls: likewise the embedding's projection.
        keys_read: rows x slots whose keys and values were read.
        keys_written: rows x positions whose keys and values were written.
    """

    attention_calls: int = 0
    mlp_calls: int = 0
    kv_calls: int = 0
    head_calls: int = 0
    embed_calls: int = 0
    keys_read: int = 0
    keys_written: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


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
    "check": (6,),
}
# Counted once a row and depth: a row's own rule looks no deeper than it goes.
_LOOKS: frozenset[Part] = frozenset({"head", "check"})
_IN_LAYER: frozenset[Part] = frozenset({"block", "attention", "mlp"})


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

    def traffic(self) -> list[Traffic]:
        """Per round, the calls and the keys and values that they read and wrote."""
        totals = []
        for calls in self.rounds():
            total = Traffic()
            for part, extent, layers in _runs(calls):
                times, rows = len(layers), extent.rows
                attends = part in ("block", "attention")
                total += Traffic(
                    attention_calls=times * attends,
                    mlp_calls=times * (part in ("block", "mlp")),
                    kv_calls=times * (part == "kv"),
                    head_calls=times * (part == "head"),
                    embed_calls=times * (part == "embed"),
                    keys_read=times * rows * extent.keys * attends,
                    keys_written=times * rows * extent.new * (attends or part == "kv"),
                )
            totals.append(total)
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
        return [
            _required(calls, rows, depths)
            for calls, rows, depths in zip(self.rounds(), live, needed, strict=True)
        ]


def _required(calls: Sequence[Call], rows: Sequence[int], depths: Sequence[int] | None) -> Sums:
    """One round, row by row; see ``Ledger.required``."""
    total = [0] * _NUM_SUMS
    done, attended = 0, -1
    heads: list[tuple[int, Extent]] = []
    for part, extent, layers in _runs(calls):
        if part == "mlp" and layers[0] == attended:
            # The rest of a layer that its attention has already counted.
            done -= 1
        if part == "head":
            heads += [(done, extent)] * len(layers)
        else:
            times = [_times(part, len(layers), done, row, depths) for row in rows]
            _add(total, part, *_own_part(extent, rows, times))
        done += len(layers) if part in _IN_LAYER else 0
        attended = layers[-1] if part == "attention" else -1
    for index, (at, extent) in enumerate(heads):
        times = [_needs_head(heads, index, at, row, depths) for row in rows]
        _add(total, "head", *_own_part(extent, rows, times))
    return Sums(*total)


def _times(part: Part, layers: int, done: int, row: int, depths: Sequence[int] | None) -> int:
    """How many of a run's calls a row's own rule asked for."""
    if depths is None:
        return layers
    if part in _IN_LAYER:
        return min(max(depths[row] - done, 0), layers)
    return layers if part not in _LOOKS or done <= depths[row] else 0


def _needs_head(
    heads: Sequence[tuple[int, Extent]],
    index: int,
    at: int,
    row: int,
    depths: Sequence[int] | None,
) -> int:
    """1 for the heads up to a row's own depth; for the last one, if there is none just there."""
    if depths is None or at <= depths[row]:
        return 1
    return int(index == len(heads) - 1 and all(done != depths[row] for done, _ in heads))


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
    if extent.members is not None:
        times = [n if row in extent.members else 0 for n, row in zip(times, rows, strict=True)]
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
