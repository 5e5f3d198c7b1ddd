"""What a task is: examples to decode, pairs to train on, the scores that judge it.

Apart, so that a task file holds data handling only. One file of this package is one task, found by
the name in ``conf/task/<name>.yaml``: it defines ``Params`` (a frozen dataclass of its settings)
and ``Task``. Not here: tokenisation, which belongs to the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A prompt without text: random ids of whatever vocabulary a model has.

    Attributes:
        stream: which random numbers; one for each split.
        number: of the example within them.
        tokens: its length, BOS included.
    """

    stream: int
    number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Check:
    """The program that an answer completes; it passes if it runs to its end.

    Attributes:
        before: text before the answer.
        after: text after it, which tests it.
        timeout_s: CPU seconds.
    """

    before: str
    after: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Parts:
    """What a prompt is put together from, so that one that is too long can lose some of it.

    Attributes:
        template: of the last part; a field stands in it as ``{name}``.
        fields: those of the template.
        shots: worked examples before it, as text.
        shots_end: what follows the shots, where there is one.
        max_tokens: most tokens, BOS included, even where more would fit; None for what fits.
        cut_at: where a field may be cut: before one of these.
    """

    template: str
    fields: Mapping[str, str]
    shots: tuple[str, ...] = ()
    shots_end: str = ""
    max_tokens: int | None = None
    cut_at: str = " "

    def text(self) -> str:
        """The prompt, without BOS."""
        end = self.shots_end if self.shots else ""
        return "".join(self.shots) + end + self.template.format_map(self.fields)


@dataclass(frozen=True, slots=True)
class Example:
    """One input to decode.

    Attributes:
        id: stable name within its split; stands in the records.
        prompt: the text before the first new token, without BOS.
        references: every correct or human text for it, at least one; none for a drawn prompt.
        facts: slot -> value, where the task has exact content to check.
        vocabulary: slot -> value -> the wordings that state it, for all slots and values of the
            task (one object for all its examples); given where ``facts`` is. No wording may hold
            another one as a run of words: the check would count both.
        drawn: ids in place of ``prompt``, for all examples of a task or for none.
        check: that the answer is run with, for all examples of a task or for none.
        outcome: of that run, beside a text that is scored; None where none was made.
        parts: that ``prompt`` is made of; None where it must fit as it is.
        after: id of an earlier example whose answer belongs into the prompt, as the field
            ``answer`` of ``parts``: a later turn. None for a prompt that is whole.
    """

    id: str
    prompt: str
    references: tuple[str, ...]
    facts: Mapping[str, str] | None = None
    vocabulary: Mapping[str, Mapping[str, tuple[str, ...]]] | None = None
    drawn: Drawn | None = None
    check: Check | None = None
    outcome: str | None = None
    parts: Parts | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One training text: the prompt and its target, without BOS and EOS.

    Attributes:
        parts: that ``prompt`` is made of; None where it must fit as it is.
    """

    prompt: str
    target: str
    parts: Parts | None = None


class Task(Protocol):
    """A data set with its template.

    Attributes:
        scores: names of the modules in ``bench/scores`` that judge its texts; none for a task that
            is for speed alone.
        calibration_score: the one that judges a single text, for calibration: how near it is to the
            full model's, or to the references. None where none of them means anything for one text.
    """

    scores: tuple[str, ...]
    calibration_score: str | None

    def examples(self, split: Split) -> Sequence[Example]:
        """All distinct inputs of a split, in the task's own fixed order."""
        ...

    def training_pairs(self) -> Sequence[Pair]:
        """The training split, one pair per reference text."""
        ...


@runtime_checkable
class Sampled(Protocol):
    """What a task also has whose examples are decoded more than once each.

    A run decodes all examples, then all of them again: each time other numbers are drawn.
    """

    samples: int


@runtime_checkable
class Verbatim(Protocol):
    """What a task also has whose answers are read with all their white space, as code is."""

    verbatim: Literal[True]


@runtime_checkable
class PublicData(Protocol):
    """What a task also has whose rows are somebody's data set."""

    stops: tuple[str, ...]
    """Text that ends an answer; what follows it is not scored."""

    def about(self, split: Split) -> Mapping[str, Any]:
        """Where the examples of a split came from, for the record."""
        ...
