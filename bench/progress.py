"""Progress: a rich bar on a terminal, plain lines elsewhere.

Apart, so that every long piece of work shows itself alike. Free of torch. Not here: results.
"""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """One piece of work of known length.

    Args:
        label: what is done.
        total: number of steps.
        quiet: show nothing.
    """

    # Lines of a plain log are this many per cent apart.
    PLAIN_STEP_PERCENT = 10

    def __init__(self, label: str, total: int, *, quiet: bool = False) -> None:
        self.label, self.total, self.quiet = label, total, quiet
        self.done, self.text, self._told = 0, "", 0
        console = Console(stderr=True)
        self._bar: RichProgress | None = None
        if console.is_terminal and not quiet:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
                console=console,
            )
            self._task = self._bar.add_task(label, total=total, text="")

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def to(self, done: int) -> None:
        """Sets the number of steps done."""
        self.done = done
        if self._bar:
            self._bar.update(self._task, completed=done)
            return
        percent = 100 * done // max(self.total, 1)
        if not self.quiet and percent >= self._told + self.PLAIN_STEP_PERCENT:
            self._told = percent - percent % self.PLAIN_STEP_PERCENT
            line = f"{self.label}: {done}/{self.total} {self.text}".rstrip()
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """A word on how it goes, shown beside the bar."""
        self.text = text
        if self._bar:
            self._bar.update(self._task, text=text)
