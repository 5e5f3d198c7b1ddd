"""Demo: facts about an invented mountain hut to an English text, made up on the fly.

Apart, because it is one task; it needs no download, so that everything can be tried at once. A
small grammar gives each input six correct texts, one per plan (``_PLANS``): a plan fixes how the
text opens and which facts come first, chance picks the wordings. Some words follow from facts
without stating them (``a small winter hut``, the closing advice, ``but`` or ``and`` before the
dogs), so that a model has to combine facts, not just copy. Every text states every fact exactly
once, in a wording of ``VOCABULARY``, and no other one: ``slot_error_rate`` is exact here.

Inputs are split by a hash of their prompt, so no input of one split occurs in another, whatever
their number. Everything is fixed; the seed of a run changes nothing. There are 16,306,464 inputs
(``num_inputs``). Not here: human language, for which see ``e2e.py``.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import NamedTuple, TypeVar

from bench.errors import InputError
from bench.tasks.contract import Example, Pair, Split

NUM_EXAMPLES = 512  # inputs of the validation split, and of the test split
_SEEDS: Mapping[Split, int] = {"train": 101, "validation": 102, "test": 103}
_SHARES_OF_256: Mapping[Split, range] = {
    "test": range(8),
    "validation": range(8, 16),
    "train": range(16, 256),
}
_MIN_OPTIONAL = 2  # slots beside the name

T = TypeVar("T")
Facts = Mapping[str, str]
Wordings = Mapping[str, tuple[str, ...]]  # value -> how a text may state it


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


_KINDS = _listed("hut, lodge, refuge")
_NAMES = _listed(
    "Alder, Bramble, Cinder, Drift, Ember, Falcon, Gentian, Heron, "
    "Juniper, Kestrel, Lantern, Marmot, Nettle, Otter, Pebble, Quarry"
)
_VALLEYS = _listed(
    "Orrin, Tavel, Sulm, Breva, Kolda, Mirren, Ostra, Fenwick, Zell, Lauder, Isk, Vessin"
)
_PATHS = _listed("gentle, steep, stony, muddy, shaded, narrow, exposed")
_BEDS = (6, 8, 10, 12, 16, 20, 24, 36, 48, 60)
_SUPPERS = _listed(
    "barley soup, lentil stew, mushroom pie, cheese dumplings, potato cakes, "
    "bean broth, apple pancakes, rye noodles, leek tart, pumpkin curry"
)
_SUMMER = (("May", "October"), ("June", "September"), ("April", "November"), ("July", "August"))
_WINTER = (("December", "March"), ("November", "April"), ("October", "February"))


def _season_wordings() -> Wordings:
    months = {
        f"{first} to {last}": (f"from {first} to {last}", f"between {first} and {last}")
        for first, last in _SUMMER + _WINTER
    }
    return {**months, "all year": ("all year round", "in every month")}


VOCABULARY: Mapping[str, Wordings] = {
    "name": {f"{n} {k.title()}": (f"{n} {k.title()}",) for n in _NAMES for k in _KINDS},
    "valley": {valley: (valley,) for valley in _VALLEYS},
    "path": {path: (path,) for path in _PATHS},
    "beds": {str(number): (f"{number} beds", f"{number} bunks") for number in _BEDS},
    "supper": {supper: (supper,) for supper in _SUPPERS},
    "season": _season_wordings(),
    "dogs": {
        "yes": ("dogs are welcome", "dogs may come in"),
        "no": ("dogs are not allowed", "dogs must stay outside"),
    },
}
_VALUES = {slot: tuple(wordings) for slot, wordings in VOCABULARY.items()}
_OPTIONAL = tuple(slot for slot in VOCABULARY if slot != "name")

# {v} is the wording, {a} its article. First behind a noun, then behind a subject.
_MODIFIERS: Mapping[str, tuple[str, ...]] = {
    "valley": ("in the {v} valley", "in the valley of {v}"),
    "path": ("up {a} {v} path", "beside {a} {v} trail"),
    "beds": ("with {v}", "offering {v}"),
    "supper": ("serving {v}", "known for its {v}"),
    "season": ("open {v}", "staffed {v}"),
    "dogs": ("where {v}",),
}
_PREDICATES: Mapping[str, tuple[str, ...]] = {
    "valley": ("lies in the {v} valley", "stands in the valley of {v}"),
    "path": ("is reached by {a} {v} path", "lies above {a} {v} trail"),
    "beds": ("has {v}", "sleeps guests in {v}"),
    "supper": ("serves {v} every evening", "cooks {v} for supper"),
    "season": ("is open {v}", "stays open {v}"),
    "dogs": ("is a place where {v}",),
}


class _Plan(NamedTuple):
    """How a text opens, and the order in which it takes up facts.

    Attributes:
        opening: its sentence; {head} is a noun phrase with one or two facts, {said} predicates.
        says: number of facts in {said}.
        order: the optional slots, comma-separated.
    """

    opening: str
    says: int
    order: str


_PLANS = (
    _Plan("{name} is {head}.", 0, "valley, path, beds, supper, season, dogs"),
    _Plan("There is {head} called {name}.", 0, "beds, season, valley, path, supper, dogs"),
    _Plan("Walkers can rest at {name}, {head}.", 0, "supper, dogs, season, beds, path, valley"),
    _Plan("{name}, {head}, {said}.", 1, "path, valley, supper, season, dogs, beds"),
    _Plan("If you look for {head}, go to {name}.", 0, "season, supper, dogs, valley, beds, path"),
    _Plan("{name} {said}.", 2, "valley, beds, season, supper, path, dogs"),
)


@dataclass(frozen=True, slots=True)
class Params:
    """Settings of the task.

    Attributes:
        train_pairs: number of training texts; a smaller number is a prefix of a larger one.
    """

    train_pairs: int

    def __post_init__(self) -> None:
        if self.train_pairs < 1:
            raise InputError(
                "Cannot make training pairs",
                got=self.train_pairs,
                allowed="a number of at least 1",
                where="task.train_pairs",
            )


class Task:
    """The huts, with six references per input."""

    scores: tuple[str, ...] = ("bleu", "rouge_l", "slot_error_rate")
    calibration_score: str | None = "rouge_l"

    def __init__(self, params: Params) -> None:
        self._params = params

    def examples(self, split: Split) -> Sequence[Example]:
        """512 distinct inputs; for ``train`` the distinct inputs of the training pairs."""
        facts_of: dict[str, Facts] = {}
        stream = _inputs(split)
        if split == "train":
            facts_of = dict(islice(stream, self._params.train_pairs))
        while len(facts_of) < NUM_EXAMPLES and split != "train":
            facts_of.update(islice(stream, 1))
        return [
            Example(str(index), prompt, _references(prompt, facts), facts, VOCABULARY)
            for index, (prompt, facts) in enumerate(facts_of.items())
        ]

    def training_pairs(self) -> Sequence[Pair]:
        """Inputs drawn with repetition, each with a text of a random plan."""
        rng = Random(_SEEDS["train"])
        inputs = islice(_inputs("train"), self._params.train_pairs)
        return [Pair(prompt, _text(facts, _pick(rng, _PLANS), rng)) for prompt, facts in inputs]


def num_inputs() -> int:
    """Number of distinct inputs: names times sets of two or more optional slots with values."""
    sizes = [len(VOCABULARY[slot]) for slot in _OPTIONAL]
    any_number = math.prod(1 + size for size in sizes)
    return len(VOCABULARY["name"]) * (any_number - sum(sizes) - 1)


def _inputs(split: Split) -> Iterator[tuple[str, Facts]]:
    """Endless prompts and facts of a split, with repetition."""
    rng = Random(_SEEDS[split])
    while True:
        facts = _draw(rng)
        prompt = ", ".join(f"{slot}[{value}]" for slot, value in facts.items()) + "\n"
        if _digest(prompt)[0] in _SHARES_OF_256[split]:
            yield prompt, facts


def _draw(rng: Random) -> Facts:
    """Every number of slots is equally likely, and every set of slots of that number."""
    count = _pick(rng, range(_MIN_OPTIONAL, len(_OPTIONAL) + 1))
    ranks = {slot: rng.random() for slot in _OPTIONAL}
    chosen = sorted(_OPTIONAL, key=ranks.__getitem__)[:count]
    slots = (slot for slot in VOCABULARY if slot == "name" or slot in chosen)
    return {slot: _pick(rng, _VALUES[slot]) for slot in slots}


def _references(prompt: str, facts: Facts) -> tuple[str, ...]:
    rng = Random(int.from_bytes(_digest(prompt), "big"))
    return tuple(_text(facts, plan, rng) for plan in _PLANS)


def _text(facts: Facts, plan: _Plan, rng: Random) -> str:
    """At most three sentences: the opening, then predicates, then advice where facts are few."""
    slots = [slot for slot in _listed(plan.order) if slot in facts]
    few = len(slots) <= 3
    num_modifiers = (1 if few else 2) if "{head}" in plan.opening else 0
    # In the noun phrase the order is always the same: a clause such as "where" has to come last.
    modifying = sorted(slots[:num_modifiers], key=_OPTIONAL.index)
    modifiers = [_phrase(_MODIFIERS, slot, facts, rng) for slot in modifying]
    end_of_opening = num_modifiers + plan.says
    sentences = [
        plan.opening.format(
            name=facts["name"],
            head=" ".join([_head(facts), *modifiers]),
            said=_predicates(slots[num_modifiers:end_of_opening], facts, rng),
        )
    ]
    rest = slots[end_of_opening:]
    half = (len(rest) + 1) // 2 if len(rest) > 2 else len(rest)
    for part, subject in ((rest[:half], "It"), (rest[half:], f"The {_kind(facts)}")):
        if part:
            sentences.append(f"{subject} {_predicates(part, facts, rng)}.")
    if few:
        sentences.append(_advice(facts))
    return " ".join(sentences)


def _predicates(slots: Sequence[str], facts: Facts, rng: Random) -> str:
    """One or more predicates of one subject; the dogs come last, with a subject of their own."""
    phrases = [_phrase(_PREDICATES, slot, facts, rng) for slot in slots if slot != "dogs"]
    joined = " and ".join([", ".join(phrases[:-1]), phrases[-1]] if phrases[1:] else phrases)
    if "dogs" not in slots:
        return joined
    if not phrases:
        return _phrase(_PREDICATES, "dogs", facts, rng)
    link = "and" if facts["dogs"] == "yes" else "but"
    return f"{joined}, {link} {_pick(rng, VOCABULARY['dogs'][facts['dogs']])}"


def _phrase(phrases: Mapping[str, tuple[str, ...]], slot: str, facts: Facts, rng: Random) -> str:
    wording = _pick(rng, VOCABULARY[slot][facts[slot]])
    return _pick(rng, phrases[slot]).format(v=wording, a=_article(wording))


def _head(facts: Facts) -> str:
    """The noun phrase, with a size and a season that follow from the facts."""
    beds = int(facts.get("beds", "20"))
    size = "small " if beds <= 12 else "large " if beds >= 36 else ""
    time = "winter" if _in_winter(facts) else "mountain"
    return f"a {size}{time} {_kind(facts)}"


def _advice(facts: Facts) -> str:
    """What follows for a guest: the first rule that fits."""
    beds = int(facts.get("beds", "20"))
    if _in_winter(facts):
        return "Bring warm clothes, for the nights up there are long and very cold."
    if facts.get("path") in ("steep", "stony", "exposed"):
        return "Wear good boots and start early, since the way up is rather hard."
    if beds <= 12:
        return "Book well ahead, because there is not much space under the roof."
    if beds >= 36:
        return "There is plenty of space, so even large groups can stay there together."
    return "The warden will gladly help you with maps and plans for longer walks."


def _in_winter(facts: Facts) -> bool:
    return facts.get("season", "") in {f"{first} to {last}" for first, last in _WINTER}


def _kind(facts: Facts) -> str:
    return facts["name"].rsplit(" ", 1)[1].lower()


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _pick(rng: Random, choices: Sequence[T]) -> T:
    # Not rng.choice: only random() is promised to give the same numbers in every Python version.
    return choices[int(rng.random() * len(choices))]


def _digest(prompt: str) -> bytes:
    return hashlib.blake2b(prompt.encode(), digest_size=8).digest()
