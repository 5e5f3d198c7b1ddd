"""History: the tokens of one row, and what followed each n-gram of them.

Apart and free of torch, because the search runs on the host and is checked against a plain one.
Each token is looked at once when it arrives and once when a draft is asked for, however long the
row is. Not here: verification (``method.py``).
"""

from collections.abc import Iterable
from typing import Literal

Match = Literal["latest", "first"]


class History:
    """Prompt and output of one row.

    Args:
        sizes: lengths of the n-grams that are looked up, in the order in which they are tried.
        match: which earlier place of an n-gram is copied from.
    """

    def __init__(self, sizes: Iterable[int], match: Match) -> None:
        self.ids: list[int] = []
        self._sizes, self._latest = tuple(sizes), match == "latest"
        # N-gram -> place of the token behind it.
        self._behind: dict[tuple[int, ...], int] = {}

    def extend(self, ids: Iterable[int]) -> None:
        """Adds tokens to the row."""
        for token in ids:
            place = len(self.ids)
            # Only now has the n-gram that ended the row a token behind it.
            for size in self._sizes:
                if size > place:
                    continue
                ngram = tuple(self.ids[place - size :])
                if self._latest:
                    self._behind[ngram] = place
                else:
                    self._behind.setdefault(ngram, place)
            self.ids.append(token)

    def draft(self, wanted: int) -> list[int]:
        """``wanted`` tokens, copied from behind an earlier place of the row's newest n-gram.

        A copy that reaches the end of the row goes on with what it has written: text that repeats
        itself is drafted in full length from its latest turn. Empty if nothing is found.
        """
        end = len(self.ids)
        for size in self._sizes:
            # A tail longer than the row is the row: nothing stands behind that.
            place = self._behind.get(tuple(self.ids[-size:]))
            if place is not None:
                return [self.ids[place + step % (end - place)] for step in range(wanted)]
        return []
