"""Reddit TL;DR, the filtered set: a post to its author's one-line summary.

Apart, because it is one task. Rows are those of OpenAI's files (subreddit, title, post, summary) or
of hub copies that hold a finished prompt and a completion; both give the same fields. A post that
is too long is cut at a line break, as theirs are. Not here: the raw set, which has no test split.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bench import rows, templated
from bench.errors import InputError

_FINISHED = re.compile(r"SUBREDDIT: r/(.*?)\n\nTITLE: (.*?)\n\nPOST: (.*)\n\nTL;DR:\s*", re.DOTALL)
_NAMES = ("subreddit", "title", "post")


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(templated.Params):
    """Where the posts come from, and the prompt."""

    hub_id: str | None = "trl-lib/tldr"


class Task(templated.Templated):
    """Posts with their summary."""

    layout = rows.Layout(
        title="Reddit TL;DR",
        form=".jsonl",
        files={
            "train": ("train", "train-*"),
            "validation": ("valid", "validation", "validation-*"),
            "test": ("test", "test-*"),
        },
        columns={
            "summary": ("completion",),
            "subreddit": (),
            "title": (),
            "post": (),
            # One copy's card spells it so.
            "prompt": ("pompt",),
            "id": (),
        },
        optional=("subreddit", "title", "post", "prompt", "id"),
        id_column="id",
    )
    calibration_score = "rouge_l"
    cut_at = "\n"

    def fields(self, row: rows.Row) -> Mapping[str, str]:
        """Of OpenAI's rows as they are, of a finished prompt by its headings."""
        summary = row["summary"].strip()
        if row["post"] is not None:
            return {name: row[name] or "" for name in _NAMES} | {"summary": summary}
        found = _FINISHED.fullmatch(row["prompt"] or "")
        if found is None:
            raise InputError(
                "Cannot read Reddit TL;DR: a row has neither a post nor a prompt with its headings",
                got=f"row {row['id']}: {(row['prompt'] or '')[:60]!r}",
                allowed="subreddit, title, post; or SUBREDDIT:, TITLE:, POST: and TL;DR: in prompt",
                where="task.data_dir, task.hub_id",
            )
        return dict(zip(_NAMES, found.groups(), strict=True)) | {"summary": summary}

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """The author's summary."""
        return (row["summary"].strip(),)
