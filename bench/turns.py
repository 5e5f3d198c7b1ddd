"""Later turns: prompts that hold the answer to an earlier one, made as that answer is known.

Apart, because all else of a run is fixed before it starts. All legs get one prompt, for their times
stand side by side: that with the dense model's answer where a dense leg runs, else the method's
own. The two are equal for a lossless method. Not here: which example follows which (the task).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bench.errors import InputError
from bench.examples import fitted
from bench.preparation import Prepared
from bench.schema import BatchRecord
from bench.summary import BASELINE, METHOD, OWN_DENSE

# Whose answer goes on, best first.
_LEGS = (BASELINE, OWN_DENSE, METHOD)
ANSWER = "answer"


def rows(prepared: Prepared, part: slice, records: Iterable[BatchRecord]) -> list[Sequence[int]]:
    """Prompt ids of the examples of a batch.

    Args:
        prepared: of the run.
        part: its examples.
        records: all that is measured so far.

    Raises:
        InputError: if an earlier turn is not answered yet.
    """
    examples = prepared.planned.examples[part]
    given = prepared.rows[part]
    if all(example.after is None for example in examples):
        return list(given)
    known = _answers(records)
    found: list[Sequence[int]] = []
    for example, row in zip(examples, given, strict=True):
        if example.after is None or example.parts is None:
            found.append(row)
            continue
        if example.after not in known:
            raise InputError(
                "A later turn comes in one batch with the turn that it follows",
                got=f"meter.batch_size={prepared.planned.config.meter.batch_size}",
                allowed="a batch no larger than the number of first turns",
                where="meter.batch_size, task.limit",
            )
        fields = {**example.parts.fields, ANSWER: known[example.after]}
        parts = replace(example.parts, fields=fields)
        found.append(fitted(parts, prepared.text, prepared.room)[0])
    return found


def _answers(records: Iterable[BatchRecord]) -> Mapping[str, str]:
    """Example -> the text that goes on into its next turn."""
    found: dict[str, str] = {}
    for record in records:
        leg = next(record.legs[name] for name in _LEGS if name in record.legs)
        found |= zip(record.example_ids, leg.texts or (), strict=True)
    return found
