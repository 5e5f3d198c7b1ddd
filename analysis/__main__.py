"""``python -m analysis``: tables, comparisons and pages from the records of runs."""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from analysis import compare, runs, selection, show, wandb_source
from bench.errors import InputError, SkipbenchError

USAGE_EXIT = 2
DEFAULT_RESULTS = Path("results/runs")
_SOURCE = "--source"

_ABOUT = """Tables from the records of runs; needs neither a GPU nor torch.

  python -m analysis runs                                 what has been run, for the eye
  python -m analysis runs --format csv --out runs.csv     every column, every digit
  python -m analysis runs --results DIR DIR --format json runs of several folders
  python -m analysis runs --where 'method==skipdecode' --where 'speedup>1.5'
  python -m analysis runs --group seed --columns method,seeds,speedup,speedup.sd
  python -m analysis runs --source wandb:ENTITY/PROJECT   runs that W&B has (also without `runs`)
  python -m analysis show RUN_ID                          one run, all that is known of it
  python -m analysis compare RUN_ID RUN_ID                runs beside the first, if they are alike

A run id may be shortened to a beginning that no other run has.
"""

_ABOUT_RUNS = """One row a run: its newest complete attempt, or its newest if none is complete.

table leaves out columns that are empty in all rows and shows few digits; csv and json hold every
column in full. Empty (null in json) means not known or not applicable, never 0. status is done,
running, stopped (the same command resumes it) or failed (its folder holds failure.txt).
What is empty meets no condition, but NAME== (is empty) and NAME!= (is not). Rows are chosen first,
then grouped, then columns are picked. docs/results.md has the unit and meaning of every column.
"""


class _Parser(argparse.ArgumentParser):
    """Refuses as the rest of the suite does."""

    def error(self, message: str) -> NoReturn:
        raise InputError(
            "The command line cannot be read",
            got=message,
            allowed=" ".join(self.format_usage().removeprefix("usage: ").split()),
            where=f"{self.prog} --help",
        )


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 for what cannot be answered as asked."""
    parser, chosen = _parser(), None
    try:
        if [word for word in arguments[:1] if word.partition("=")[0] == _SOURCE]:
            arguments = ["runs", *arguments]
        chosen = parser.parse_args(arguments)
        if chosen.command is None:
            sys.stderr.write(_ABOUT)
            return USAGE_EXIT
        _write(_ANSWERS[chosen.command](chosen), chosen.out)
    except SkipbenchError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_EXIT
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="python -m analysis", description=_ABOUT, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", title="commands", metavar="")
    of_runs = commands.add_parser(
        "runs", help="one row a run", description=_ABOUT_RUNS, formatter_class=raw
    )
    of_compare = commands.add_parser(
        "compare",
        help="runs beside the first of them",
        description=compare.ABOUT,
        formatter_class=raw,
    )
    of_show = commands.add_parser(
        "show", help="one run on a page", description=show.ABOUT, formatter_class=raw
    )
    _add_selection(of_runs)
    compare.add_options(of_compare)
    show.add_options(of_show)
    formats = {of_runs: runs.FORMATS, of_compare: runs.FORMATS, of_show: show.FORMATS}
    for command, accepted in formats.items():
        _add_shared(command, accepted)
    return parser


def _add_shared(command: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """Where records come from, and where and as what the answer goes."""
    command.add_argument(
        "--results",
        nargs="+",
        type=Path,
        metavar="DIR",
        default=[DEFAULT_RESULTS],
        help=f"folders that runs were written to (default: {DEFAULT_RESULTS})",
    )
    command.add_argument(
        "--format",
        default=formats[0],
        metavar="FORMAT",
        help=f"{', '.join(formats)} (default: {formats[0]})",
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="write here instead of to the screen"
    )


def _add_selection(of_runs: argparse.ArgumentParser) -> None:
    of_runs.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="'NAME OP VALUE'",
        help="only rows that meet this, OP one of == != < <= > >=; may be repeated",
    )
    of_runs.add_argument(
        "--attempts",
        choices=("newest", "all"),
        default="newest",
        help="of each run (default: newest)",
    )
    of_runs.add_argument(
        "--group",
        choices=("seed",),
        help="one row for runs that are equal but for this: means, NAME.sd, and how many",
    )
    of_runs.add_argument(
        _SOURCE, metavar=wandb_source.ABOUT, help="runs of a W&B project instead of --results"
    )
    of_runs.add_argument("--columns", metavar="A,B", help="only these columns, in this order")


def _runs(chosen: argparse.Namespace) -> str:
    every, by_seed = chosen.attempts == "all", chosen.group == "seed"
    if chosen.source:
        found = wandb_source.rows(chosen.source, every=every, settings=by_seed)
    else:
        found = runs.rows(chosen.results, every=every, settings=by_seed)
    names = [name for name in found[0] if name != runs.SETTINGS]
    found = selection.where(found, chosen.where)
    if by_seed:
        found, names = selection.grouped(found), selection.grouped_names(names)
    if chosen.columns:
        names = selection.picked(names, chosen.columns)
    return runs.rendered(
        found,
        chosen.format,
        _width(chosen),
        names=names,
        as_named=bool(chosen.columns),
    )


def _width(chosen: argparse.Namespace) -> int | None:
    """Characters of a line of the screen; None for what does not go there."""
    return Console().width if chosen.out is None and sys.stdout.isatty() else None


_ANSWERS: Mapping[str, Callable[[argparse.Namespace], str]] = {
    "runs": _runs,
    "compare": lambda chosen: compare.answered(chosen, _width(chosen)),
    "show": lambda chosen: show.answered(chosen, _width(chosen)),
}


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            "Cannot write the table",
            got=f"{out}: {error.strerror}",
            allowed="a file in a folder that exists and can be written",
            where="--out",
        ) from error


if __name__ == "__main__":
    # A reader such as head may stop early: end as other tools do, without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
