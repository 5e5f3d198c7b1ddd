"""Prompts that do not fit: worked examples go first, then the end of the longest field."""

import pytest

from bench.prompts import fit
from bench.tasks.contract import Parts

PARTS = Parts(
    template="Title: {title}\nText: {text}\nSummary:",
    fields={"title": "one two", "text": "a b c d e f"},
    shots=("first shot\n", "second shot\n"),
    shots_end="\n",
)


def words(text):
    return len(text.split())


def test_a_prompt_that_fits_stays_as_it_is():
    whole = "first shot\nsecond shot\n\nTitle: one two\nText: a b c d e f\nSummary:"
    assert PARTS.text() == whole
    assert fit(PARTS, words, 15) is PARTS


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (14, "second shot\n\nTitle: one two\nText: a b c d e f\nSummary:"),
        (13, "second shot\n\nTitle: one two\nText: a b c d e f\nSummary:"),
        # What follows the worked examples goes with the last one.
        (12, "Title: one two\nText: a b c d e f\nSummary:"),
        (11, "Title: one two\nText: a b c d e f\nSummary:"),
        (10, "Title: one two\nText: a b c d e\nSummary:"),
        (6, "Title: one two\nText: a\nSummary:"),
        (5, "Title: one two\nText: \nSummary:"),
        # Nothing fits: the caller refuses it.
        (4, "Title: one two\nText: \nSummary:"),
    ],
)
def test_what_goes_first(room, expected):
    assert fit(PARTS, words, room).text() == expected


def test_the_cap_of_a_task_counts_where_the_model_has_room():
    capped = Parts(**{name: getattr(PARTS, name) for name in Parts.__slots__} | {"max_tokens": 12})
    assert words(fit(capped, words, 100).text()) == 11
    assert words(fit(capped, words, 10).text()) == 10


def test_a_field_is_cut_where_its_task_says():
    parts = Parts("{post}\nTL;DR:", {"post": "a b\nc d\ne f"}, cut_at="\n")
    assert fit(parts, words, 6).text() == "a b\nc d\nTL;DR:"
    assert fit(parts, words, 4).text() == "a b\nTL;DR:"
