"""``python -m slurm``: how the jobs of a sweep stand; ends or repeats them."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.live import Live
from rich.table import Table

from bench import jobs
from bench.errors import InputError, SkipbenchError
from slurm import commands, retrying, states, sweeps, table, waiting
from slurm.states import RunState
from slurm.sweeps import Sweep

USAGE_EXIT, FAILED_EXIT, INTERRUPTED_EXIT = 2, 1, 130
# Where nothing cuts a row.
_WIDE = 10_000

_ABOUT = """Sweeps that were handed in with hydra/launcher=slurm.

  python -m slurm status                     the newest sweep, run by run
  python -m slurm status 3 --watch           sweep 3, until all its runs have ended
  python -m slurm status 3 --json            for programs
  python -m slurm cancel 3                   ends what is queued or runs
  python -m slurm retry 3                    hands in again what is not done
  python -m slurm retry 3 launch.slurm.memory_gb=64 launch.slurm.minutes=300

A run that is taken up again goes on where it was. Exit codes: 0 all is well, 1 a watched run
failed, 2 cannot be done as asked.
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
    """The exit code."""
    try:
        chosen = _parser().parse_args(arguments)
        if chosen.command is None:
            sys.stderr.write(_ABOUT)
            return USAGE_EXIT
        return _ANSWERS[chosen.command](chosen)
    except SkipbenchError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="python -m slurm", description=_ABOUT, formatter_class=raw)
    chosen = parser.add_subparsers(dest="command", title="commands", metavar="")
    status = chosen.add_parser("status", help="how the runs of a sweep stand")
    status.add_argument("--watch", action="store_true", help="until all runs have ended")
    status.add_argument("--json", action="store_true", help="as JSON, one object a run")
    cancel = chosen.add_parser("cancel", help="end what is queued or runs")
    retry = chosen.add_parser("retry", help="hand in again what is not done")
    for command in (status, cancel, retry):
        optional = "?" if command is status else None
        command.add_argument(
            "sweep", nargs=optional, metavar="SWEEP", help="its number (status: the newest)"
        )
        command.add_argument(
            "--results",
            type=Path,
            metavar="DIR",
            default=sweeps.DEFAULT,
            help=f"the sweep's results_dir (default: {sweeps.DEFAULT})",
        )
    retry.add_argument(
        "settings", nargs="*", metavar="launch.KEY=VALUE", help="other settings for these jobs"
    )
    return parser


def _status(chosen: argparse.Namespace) -> int:
    sweep = sweeps.find(chosen.results, chosen.sweep)
    if chosen.watch:
        return _watch(sweep)
    found = states.of_sweep(sweep)
    if chosen.json:
        sys.stdout.write(json.dumps(table.rows(found), indent=1, ensure_ascii=False) + "\n")
        return 0
    _show(sweep, found)
    others = [str(each.number) for each in sweeps.known(chosen.results)]
    if chosen.sweep is None and len(others) > 1:
        sys.stdout.write(f"sweeps here: {', '.join(others)}\n")
    return 0


def _watch(sweep: Sweep) -> int:
    """Shows the sweep until it has ended; 1 if a run of it failed."""
    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:

            def draw(now: Sequence[RunState]) -> bool:
                live.update(_drawn(sweep, now), refresh=True)
                return True

            found = waiting.until_ended(sweep, draw)
    else:
        said: list[str] = []

        def say(now: Sequence[RunState]) -> bool:
            text = table.counts(now)
            if text not in said[-1:]:
                said.append(text)
                sys.stdout.write(f"sweep {sweep.number}: {text}\n")
                sys.stdout.flush()
            return True

        found = waiting.until_ended(sweep, say)
        _show(sweep, found)
    return FAILED_EXIT if any(state.status in jobs.BAD_ENDS for state in found) else 0


def _cancel(chosen: argparse.Namespace) -> int:
    sweep = sweeps.find(chosen.results, chosen.sweep)
    latest = {each.slurm_id for each in sweep.latest().values()}
    active = {name for name, each in commands.held(latest).items() if each.is_active}
    commands.cancel(active)
    sys.stdout.write(f"sweep {sweep.number}: {len(active)} jobs cancelled\n")
    return 0


def _retry(chosen: argparse.Namespace) -> int:
    sweep = sweeps.find(chosen.results, chosen.sweep)
    handed_in = retrying.retry(sweep, chosen.settings)
    runs = sum(len(each.runs) for each in handed_in)
    sys.stdout.write(f"sweep {sweep.number}: {runs} runs handed in, {len(handed_in)} jobs\n")
    return 0


def _show(sweep: Sweep, found: Sequence[RunState]) -> None:
    console, drawn = Console(), _drawn(sweep, found)
    if not console.is_terminal:
        widest = Console(width=_WIDE).measure(drawn).maximum
        console = Console(width=max(widest, console.width))
    console.print(drawn)


def _drawn(sweep: Sweep, found: Sequence[RunState]) -> Table:
    return table.drawn(found, f"sweep {sweep.number}: {table.counts(found)}")


_ANSWERS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "status": _status,
    "cancel": _cancel,
    "retry": _retry,
}

if __name__ == "__main__":
    # Ends quietly when the reader of a pipe does.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
