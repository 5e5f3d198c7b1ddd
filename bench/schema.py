"""The records of a run: what is written as it comes, and how it is read back.

Apart, because records outlive code: every field has its meaning here, and a version. Free of
torch. A run's folder holds ``start.json`` (what runs), ``segments.jsonl`` (where, one process a
line), ``batches.jsonl`` (one batch a line) and, last, ``header.json``: its presence means done. Not
here: files and folders (``store.py``), derived numbers (``summary.py``).
"""

from dataclasses import dataclass, field, fields
from typing import Any

from bench.meters.clock import Timing
from bench.meters.energy import Energy
from methods.engine.ledger import Sums, Traffic

# 1 is the first, so no record is older. With 2 comes ``upgrade(raw) -> raw`` here, which the store
# calls for older records before they are made into a Start, a Header or a BatchRecord.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Speculation:
    """What came of drafts, over all verifications of live rows; a row's round is one verification.

    Attributes:
        verifications: rounds x rows that were live in them.
        drafted: tokens that were drafted.
        accepted: those of them that were accepted.
        offered_at: per place in a draft, from its first, verifications that offered it.
        accepted_at: those that accepted it.
    """

    verifications: int
    drafted: int
    accepted: int
    offered_at: list[int]
    accepted_at: list[int]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a lossless method's ids first differ from the dense model's.

    Attributes:
        example_id: of the row.
        index: of the new token.
        logit_gap: dense logit of its token less that of its second choice, in float32: a tie that
            rounding decides is one of next to nothing.
    """

    example_id: str
    index: int
    logit_gap: float


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg's results on one batch.

    Attributes:
        ids: kept new ids of each row, the first EOS included.
        texts: the text of each row, up to the first EOS; null where nothing is text.
        layers: layers run for each kept id.
        statistics: score -> additive statistics of each row.
        scores: score -> value of each row alone.
        timings: one for each pass; empty for a batch that was decoded for quality only.
        rounds: rounds of the first pass, prompt pass included.
        prompt_executed: ledger sums of the prompt pass.
        decode_executed: ledger sums of the rounds after it, as they ran.
        decode_required: the part of them that live rows asked for.
        speculation: of a method that drafts; null for others.
        decode_traffic: what the rounds after the prompt's read and wrote; null in records from
            before it was counted.
        warmups: the untimed passes, whose times are kept apart; only of the first batch of each
            number of rows.
        round_s: seconds of each round in a pass of its own that waits for every round; null unless
            asked for.
        energy: of a measurement of its own; null where not asked for or not to be had.
        peak_memory_bytes: allocated on the device at most during the first pass; null on a CPU.
        peak_rss_bytes: of this process at most during the first pass, all legs' weights included;
            null where the kernel's mark cannot be reset.
        outcomes: what came of running each row's text as code, as ``sandbox`` names it; null where
            none was run.
        first_round: kept tokens of the first Round, per row: they belong to ``ttft_s``; null where
            each row has one, as every method of ours gives. A peer's first step may give more.
    """

    ids: list[list[int]]
    texts: list[str] | None
    layers: list[list[int]]
    statistics: dict[str, list[list[float]]]
    scores: dict[str, list[float | None]]
    timings: list[Timing]
    rounds: int
    prompt_executed: Sums
    decode_executed: Sums
    decode_required: Sums
    speculation: Speculation | None = None
    decode_traffic: Traffic | None = None
    warmups: list[Timing] = field(default_factory=list)
    round_s: list[float] | None = None
    energy: Energy | None = None
    peak_memory_bytes: int | None = None
    peak_rss_bytes: int | None = None
    first_round: list[int] | None = None
    outcomes: list[str] | None = None

    def first_tokens(self) -> list[int]:
        """Kept tokens of the first Round, per row."""
        return [1] * len(self.ids) if self.first_round is None else self.first_round


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch, all its legs and passes: written whole or not at all.

    Attributes:
        index: number of the batch in the run, from 0.
        example_ids: the task's ids of its rows.
        prompt_tokens: of each row, BOS included.
        legs: leg -> results; ``method``, and ``baseline`` or ``own_dense`` where they ran.
        order: legs of each timed pass in the order in which they ran.
        segment: which process measured it, as an index into ``segments.jsonl``.
        differences: from dense on the method's own weights, if the method claims to have none; null
            where that was not looked at.
    """

    index: int
    example_ids: list[str]
    prompt_tokens: list[int]
    legs: dict[str, Leg]
    order: list[list[str]]
    segment: int = 0
    differences: list[Difference] | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """One process that worked on a run; a run that was stopped and taken up has several.

    Attributes:
        provenance: code, libraries, device.
        started_at: UTC.
    """

    provenance: dict[str, Any]
    started_at: str

    @property
    def hardware(self) -> tuple[Any, ...]:
        """What two processes must share for their times to stand side by side."""
        names = ("device", "device_name", "driver", "cpu_model")
        return tuple(self.provenance.get(name) for name in names)


@dataclass(frozen=True, slots=True)
class Start:
    """What a run is, known before its first batch.

    Attributes:
        schema_version: of this module.
        run_id: hash of ``identity``.
        attempt: 1, or more for a rerun.
        identity: all that bears on a number.
        config: the whole configuration, for a reader.
        columns: those columns of the table that are known before anything ran.
        shapes: leg -> architecture fields, for costs.
        started_at: UTC.
        data: where the examples came from, and the first prompt as it was decoded, text and ids;
            empty in records from before that was kept.
    """

    schema_version: int
    run_id: str
    attempt: int
    identity: dict[str, Any]
    config: dict[str, Any]
    columns: dict[str, Any]
    shapes: dict[str, dict[str, Any]]
    started_at: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """Written last: the run is complete.

    Attributes:
        schema_version: of this module.
        columns: every column of the table.
        num_batches: batches of the run.
        ended_at: UTC.
    """

    schema_version: int
    columns: dict[str, Any]
    num_batches: int
    ended_at: str


# Fields of a Leg that are records themselves.
_KINDS: dict[str, type[Any]] = {
    "prompt_executed": Sums,
    "decode_executed": Sums,
    "decode_required": Sums,
    "decode_traffic": Traffic,
    "energy": Energy,
    "speculation": Speculation,
}


def leg_from(raw: dict[str, Any]) -> Leg:
    """A Leg of its JSON form."""
    # What version 1 had of drafts before any method drafted: always null.
    values = {name: value for name, value in raw.items() if name not in ("drafted", "accepted")}
    for name, kind in _KINDS.items():
        if values.get(name) is not None:
            values[name] = kind(**values[name])
    for name in ("timings", "warmups"):
        values[name] = [Timing(**timing) for timing in raw.get(name, ())]
    return Leg(**values)


def batch_from(raw: dict[str, Any]) -> BatchRecord:
    """A BatchRecord of its JSON form."""
    values = {**raw, "legs": {name: leg_from(leg) for name, leg in raw["legs"].items()}}
    if values.get("differences") is not None:
        values["differences"] = [Difference(**each) for each in values["differences"]]
    return BatchRecord(**values)


def plain(record: Any) -> dict[str, Any]:  # noqa: ANN401  # any record
    """The fields of a record, as ``json.dumps(record, default=plain)`` wants them.

    Raises:
        TypeError: for what is no record.
    """
    return {each.name: getattr(record, each.name) for each in fields(record)}
