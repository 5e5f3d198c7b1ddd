"""The gate before any ratio of two runs: what they must share, and in what they differ.

Apart, because whatever sets one run's times beside another's (a table, a figure) must refuse unlike
runs by the same text, and mark them alike where a user insists. Pure, free of torch. Not here: the
ratio itself (``stats.py``), where records lie (``store.py``). The pair of legs within a run needs
no gate: one process measured both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.config import DENSE
from bench.errors import InputError
from bench.identity import ADDED_LATER, digest
from bench.schema import BatchRecord, Segment, Start
from bench.summary import BASELINE, METHOD

SIGN = "!"
OVERRIDE = "--allow-unlike"
# Time per kept token up to EOS and time for a set number of tokens are two quantities.
NEVER = frozenset({"decode.length"})

_HARDWARE = ("device", "device_name", "driver", "cpu_model", "threads")
_DIRTY = "git_dirty"
# They name tokens and bear on no time.
_NOT_OF_SPEED = ("bos_token_id", "pad_token_id")
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two measurements differ.

    Attributes:
        field: its name: a config key where there is one.
        mine: value of the first, null where not known.
        theirs: value of the second.
    """

    field: str
    mine: Any
    theirs: Any


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything two measurements must share for a ratio of their times to mean anything.

    The name of the model config is not among them: equal weights and equal shapes say more.

    Attributes:
        run_id: whose they are; compared with nothing.
        machine: what measured, and how many threads.
        code: revision, and the versions that bear on speed.
        settings: of decode, engine, task and meter, by config key.
        example_ids: of each batch, in order.
        prompt_tokens: of each row of each batch.
        shape: architecture of the method leg.
        checkpoint: fingerprint of the dense weights both are measured against; the model's name
            where no dense leg ran.
        method: hash of the method with its settings.
        weights: fingerprint of the method leg's. A method is what was trained for it, so they are
            compared for equal methods with equal settings only.
        within: fields in which the run's own timed segments differ.
    """

    run_id: str
    machine: Mapping[str, Any]
    code: Mapping[str, Any]
    settings: Mapping[str, Any]
    example_ids: tuple[tuple[str, ...], ...]
    prompt_tokens: tuple[tuple[int, ...], ...]
    shape: Mapping[str, Any]
    checkpoint: str | None
    method: str
    weights: str | None
    within: tuple[Difference, ...]


def conditions(
    start: Start, segments: Sequence[Segment], batches: Sequence[BatchRecord]
) -> Conditions:
    """The conditions of a run, from its records.

    Args:
        start: of the run.
        segments: all of it; those that timed a batch count, or all where no batch was timed.
        batches: all of it.
    """
    identity = start.identity
    weights = identity.get("weights", {})
    # A segment whose record was lost is of an unknown machine.
    known = dict(enumerate(segment.provenance for segment in segments))
    timed = {b.segment for b in batches if any(leg.timings for leg in b.legs.values())}
    provenances = [known.get(number, {}) for number in sorted(timed or known)] or [{}]
    first, *others = [_machine(each) | _code(each) for each in provenances]
    within = [fault for other in others for fault in _unlike(first, other)]
    return Conditions(
        run_id=start.run_id,
        machine=_machine(provenances[0]),
        code=_code(provenances[0]),
        settings=_settings(identity),
        example_ids=tuple(tuple(batch.example_ids) for batch in batches),
        prompt_tokens=tuple(tuple(batch.prompt_tokens) for batch in batches),
        shape={
            name: value
            for name, value in start.shapes.get(METHOD, {}).items()
            if name not in _NOT_OF_SPEED
        },
        checkpoint=_checkpoint(start),
        method=digest(identity.get("method", {})),
        weights=weights.get(METHOD),
        within=tuple({fault.field: fault for fault in within}.values()),
    )


def differences(mine: Conditions, theirs: Conditions) -> list[Difference]:
    """All in which two runs differ, and what keeps either from being one measurement.

    Null on both sides is equal; null against a value is a difference. Changes that were not
    committed are one on either side, since two such trees cannot be shown to be equal.
    """
    found = _unlike(_by_name(mine), _by_name(theirs))
    for name in ("example_ids", "prompt_tokens"):
        found += _unlike_batches(name, getattr(mine, name), getattr(theirs, name))
    if mine.method == theirs.method:
        found += _unlike({"weights": mine.weights}, {"weights": theirs.weights})
    for run in (mine, theirs):
        found += [
            Difference(f"{each.field} within {run.run_id}", each.mine, each.theirs)
            for each in run.within
        ]
    return found


def refuse(found: Sequence[Difference], *, allow_unlike: bool = False) -> None:
    """Refuses runs that differ.

    Args:
        found: of ``differences``.
        allow_unlike: let pass what can be shown with a mark.

    Raises:
        InputError: naming every differing field with both values.
    """
    barred = [each for each in found if each.field in NEVER]
    if not found or (allow_unlike and not barred):
        return
    names = ", ".join(each.field for each in barred)
    raise InputError(
        "These runs cannot be compared: their times differ for more reasons than the method",
        got=explained(found),
        allowed=f"equal {names} in any case: {OVERRIDE} does not let it pass"
        if barred
        else f"equal values; or {OVERRIDE}, which marks every number concerned",
        where=f"the runs' settings and machines, or {OVERRIDE}",
    )


def fields(found: Iterable[Difference]) -> str | None:
    """The differing fields as one text; None where there are none."""
    return ", ".join(each.field for each in found) or None


def mark(found: Sequence[Difference]) -> str:
    """What stands beside a number that unlike runs gave; empty where there is nothing to say."""
    return f"{SIGN} unlike: {fields(found)}" if found else ""


def explained(found: Iterable[Difference]) -> str:
    """The differing fields with both values, as one text."""
    return "; ".join(f"{each.field}: {_text(each.mine)} / {_text(each.theirs)}" for each in found)


def _machine(provenance: Mapping[str, Any]) -> dict[str, Any]:
    environment = provenance.get("environment") or {}
    return {
        **{name: provenance.get(name) for name in _HARDWARE},
        # Whether threads spin or sleep between products changes times on a CPU several fold.
        "OMP_WAIT_POLICY": environment.get("OMP_WAIT_POLICY"),
    }


def _code(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "git_revision": provenance.get("git_revision"),
        _DIRTY: provenance.get(_DIRTY),
        "torch": (provenance.get("packages") or {}).get("torch"),
        "python": provenance.get("python"),
    }


def _settings(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Config key -> value, those that came after the record was written with their old value."""
    groups = ("decode", "engine", "task")
    later = {key: old for key, old in ADDED_LATER.items() if key.partition(".")[0] in groups}
    given = {
        f"{group}.{name}": value
        for group in groups
        for name, value in identity.get(group, {}).items()
    }
    batch_size = identity.get("meter", {}).get("batch_size")
    tokenizer = identity.get("weights", {}).get("tokenizer")
    return later | given | {"meter.batch_size": batch_size, "model.tokenizer": tokenizer}


def _checkpoint(start: Start) -> str | None:
    weights = start.identity.get("weights", {})
    if BASELINE in weights:
        return str(weights[BASELINE])
    if start.identity.get("method", {}).get("name") == DENSE:
        return str(weights[METHOD])
    # No dense leg: of two such runs only the name can say that they share a dense model.
    name = start.config.get("model", {}).get("name")
    return None if name is None else f"model {name}"


def _by_name(run: Conditions) -> dict[str, Any]:
    shape = {f"shape.{name}": value for name, value in run.shape.items()}
    return {
        **run.machine,
        **run.code,
        **run.settings,
        **shape,
        "checkpoint": run.checkpoint,
    }


def _unlike(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    found = []
    for name in dict.fromkeys([*mine, *theirs]):
        one, other = mine.get(name), theirs.get(name)
        if one != other or (name == _DIRTY and one):
            found.append(Difference(name, one, other))
    return found


def _unlike_batches(
    name: str, mine: Sequence[Sequence[Any]], theirs: Sequence[Sequence[Any]]
) -> list[Difference]:
    """At most one difference: the number of batches, or the first batch that differs."""
    if len(mine) != len(theirs):
        return [Difference(name, f"{len(mine)} batches", f"{len(theirs)} batches")]
    for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if one != other:
            values = [f"batch {index}: {' '.join(map(str, each))}" for each in (one, other)]
            return [Difference(name, *values)]
    return []


def _text(value: object) -> str:
    """A value in a refusal: never a whole list of ids."""
    text = "not known" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
