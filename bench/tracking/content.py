"""What W&B is shown of one attempt at a run, made of its records alone.

Apart, because a run that was killed, requeued or tracked years later must look like one that went
through: the same records give the same content. Pure, free of wandb and torch. Not here: how it
gets to W&B (``wandb_run.py``), when (``handover.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from bench import columns
from bench.latency import latency_columns, speedup_columns, tokens
from bench.schema import BatchRecord, Header, Leg, Segment, Start
from bench.store import Attempt
from bench.summary import METHOD

# W&B keeps no more characters of a name.
_NAME_LENGTH = 128
_OF_RATE = ("decode_tokens_per_s", "ttft_s", "tpot_s")
# x-axis of all that is told batch by batch.
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: one list a row."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of two columns of a sheet; one line or colour for each value of ``by``."""

    kind: Literal["scatter", "line"]
    sheet: Sheet
    x: str
    y: str
    by: str
    title: str


@dataclass(frozen=True, slots=True)
class Reference:
    """What an example asks and what a person would answer; not in the records."""

    prompt: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """All of one W&B run.

    Attributes:
        run_id: of W&B: the run's id and its attempt, so that the same run is never there twice.
        name: for the eye.
        job_type: the method.
        group: the sweep that the run was started in; None for a run alone.
        config: nested plain values, references resolved.
        summary: columns of the table that are known.
        history: one row a batch, in order.
        sheets: name -> table.
        charts: name -> drawing.
    """

    run_id: str
    name: str
    job_type: str
    group: str | None
    config: dict[str, Any]
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    sheets: dict[str, Sheet]
    charts: dict[str, Chart]


def content(
    attempt: Attempt, sample: int, references: Mapping[str, Reference] | None = None
) -> Content | None:
    """All that is shown of an attempt; None if it ended before it said what it is.

    Args:
        attempt: in whatever state.
        sample: generations that are shown, evenly spaced over the run.
        references: example id -> prompt and references, where the task's data are at hand.

    Raises:
        InputError: for records that cannot be read.
    """
    start = attempt.start()
    if start is None:
        return None
    header, batches = attempt.header(), attempt.batches()
    summary = summary_of(attempt, start, header)
    return Content(
        run_id=wandb_id(attempt, start),
        name=_name(start),
        job_type=str(start.columns.get("method")),
        group=(start.config.get("tracking") or {}).get("group"),
        config=config_of(start, attempt.segments()),
        summary=summary,
        history=[history_row(batch) for batch in batches],
        sheets=dict(_sheets(batches, sample, references or {})),
        charts=dict(_charts(batches, summary)),
    )


def wandb_id(attempt: Attempt, start: Start) -> str:
    """The id of the run in W&B: that which a sweep agent of W&B has given, else our own."""
    tracking = start.config.get("tracking") or {}
    # Without a sweep it is what a shell exports, for all runs that are started in it.
    given = tracking.get("agent_sweep_id") and tracking.get("agent_run_id")
    return given or f"{attempt.folder.parent.name}-{attempt.number}"


def config_of(start: Start, segments: Sequence[Segment]) -> dict[str, Any]:
    """The configuration as it ran, with where that was (the last process that worked on it)."""
    return {
        **start.config,
        "run_id": start.run_id,
        "attempt": start.attempt,
        "identity": start.identity,
        "shapes": start.shapes,
        "provenance": segments[-1].provenance if segments else None,
        "segments": len(segments),
        "started_at": start.started_at,
        "units": {column.name: column.unit for column in columns.COLUMNS if column.unit},
    }


def summary_of(attempt: Attempt, start: Start, header: Header | None) -> dict[str, Any]:
    """The columns that are known, by the names that they have in the table."""
    row = dict(start.columns if header is None else header.columns)
    row |= {"status": attempt.status(), "started_at": start.started_at}
    row |= {} if header is None else {"ended_at": header.ended_at}
    return {name: value for name, value in row.items() if value is not None}


def history_row(batch: BatchRecord) -> dict[str, Any]:
    """What one batch gave, of each leg and of the pair."""
    row: dict[str, Any] = {
        BATCH: batch.index,
        "batch_examples": len(batch.example_ids),
        "segment": batch.segment,
    }
    for name, leg in batch.legs.items():
        row |= {f"{name}/{key}": value for key, value in _of_leg(leg).items()}
    if batch.legs[METHOD].timings:
        pair = speedup_columns({name: [leg] for name, leg in batch.legs.items()})
        row["pair/speedup"] = pair.get("speedup")
    return {key: value for key, value in row.items() if value is not None}


def layers_per_token(leg: Leg) -> float | None:
    """Layers run for each kept decode token."""
    decoded = tokens([leg], first=1)
    before = leg.first_tokens()
    ran = sum(sum(row[first:]) for row, first in zip(leg.layers, before, strict=True))
    return ran / decoded if decoded else None


def _of_leg(leg: Leg) -> dict[str, Any]:
    found = latency_columns({METHOD: [leg]}) if leg.timings else {}
    row = {name: found.get(name) for name in _OF_RATE}
    row |= {"tokens": tokens([leg], first=0), "layers_per_token": layers_per_token(leg)}
    if leg.speculation is not None and leg.speculation.drafted:
        row["acceptance_rate"] = leg.speculation.accepted / leg.speculation.drafted
    row["peak_memory_bytes"] = leg.peak_memory_bytes
    for score, values in leg.scores.items():
        known = [value for value in values if value is not None]
        row[f"mean_{score}"] = fmean(known) if known else None
    return row


def _sheets(
    batches: Sequence[BatchRecord], sample: int, references: Mapping[str, Reference]
) -> Iterator[tuple[str, Sheet]]:
    if batches:
        yield "generations", generations(batches, sample, references)
        yield "example_scores", example_scores(batches)


def generations(
    batches: Sequence[BatchRecord], sample: int, references: Mapping[str, Reference]
) -> Sheet:
    """Texts of a sample of the examples, with their references and layers token by token."""
    places = [(batch, row) for batch in batches for row in range(len(batch.example_ids))]
    legs = list(batches[0].legs)
    heads = ["example_id", "prompt", "references"]
    heads += [f"{leg}.{what}" for leg in legs for what in ("text", "tokens", "layers")]
    rows = []
    for at in sampled(len(places), sample):
        batch, row = places[at]
        name = batch.example_ids[row]
        known = references.get(name)
        cells: list[Any] = [name, None, None]
        if known is not None:
            cells = [name, known.prompt, "\n".join(known.texts)]
        for leg in (batch.legs[each] for each in legs):
            text = None if leg.texts is None else leg.texts[row]
            layers = " ".join(map(str, leg.layers[row]))
            cells += [text, len(leg.ids[row]), layers]
        rows.append(cells)
    return Sheet(heads, rows)


def sampled(total: int, wanted: int) -> list[int]:
    """``wanted`` numbers below ``total``, evenly spaced from 0 on; all of them if there are fewer.

    So the sample does not change with the machine, and reaches to the end of the run.
    """
    if wanted >= total:
        return list(range(total))
    return [number * total // wanted for number in range(wanted)]


def example_scores(batches: Sequence[BatchRecord]) -> Sheet:
    """Every example with the scores of its texts alone."""
    legs, scores = list(batches[0].legs), list(batches[0].legs[METHOD].scores)
    heads = ["example_id", "batch", "prompt_tokens"]
    heads += [f"{leg}.{what}" for leg in legs for what in ("tokens", *scores)]
    rows = []
    for batch in batches:
        for row, name in enumerate(batch.example_ids):
            cells: list[Any] = [name, batch.index, batch.prompt_tokens[row]]
            for leg in (batch.legs[each] for each in legs):
                cells += [len(leg.ids[row]), *(leg.scores[score][row] for score in scores)]
            rows.append(cells)
    return Sheet(heads, rows)


def layers_by_position(batches: Sequence[BatchRecord]) -> Sheet:
    """Mean layers at each place in the new text, 0 being the prompt's token; of each leg."""
    rows: list[list[Any]] = []
    for name in batches[0].legs:
        at: dict[int, list[int]] = {}
        for batch in batches:
            for layers in batch.legs[name].layers:
                for position, count in enumerate(layers):
                    at.setdefault(position, []).append(count)
        rows += [
            [name, position, fmean(at[position]), len(at[position])] for position in sorted(at)
        ]
    return Sheet(["leg", "position", "layers", "rows"], rows)


def _charts(
    batches: Sequence[BatchRecord], summary: Mapping[str, Any]
) -> Iterator[tuple[str, Chart]]:
    if batches:
        sheet = layers_by_position(batches)
        yield "layers_by_position", Chart("line", sheet, "position", "layers", "leg", "Layers run")
    speedup = summary.get("speedup")
    for name in batches[0].legs[METHOD].scores if batches else ():
        mine, dense = summary.get(f"score.{name}"), summary.get(f"dense.{name}")
        if speedup is None or mine is None:
            continue
        points = [[summary["method"], speedup, mine]]
        points += [] if dense is None else [["dense", 1.0, dense]]
        sheet = Sheet(["what", "speedup", name], points)
        title = f"{name} against speed-up"
        yield f"{name}_by_speedup", Chart("scatter", sheet, "speedup", name, "what", title)


def _name(start: Start) -> str:
    known = start.columns
    parts = [known.get(each) for each in ("method", "setting", "model", "task", "gpu")]
    name = " ".join(str(part) for part in parts if part) + f" seed {known.get('seed')}"
    return name[:_NAME_LENGTH]
