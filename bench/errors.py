"""The suite's errors, and the four parts of their texts.

Apart, so that every module (those that run on a login node too) can refuse bad input in one form.
Not here: what is caught where; the door turns a ``SkipbenchError`` into a short text and exit
code 2.
"""

from collections.abc import Sequence


class SkipbenchError(Exception):
    """Base of all refusals that a user can mend."""


class InputError(SkipbenchError):
    """A setting, file or combination that cannot be run.

    Args:
        failed: what could not be done, as the start of a sentence.
        got: the offending value.
        allowed: what would be accepted.
        where: config key or file in which to change it.
    """

    def __init__(self, failed: str, *, got: object, allowed: object, where: str) -> None:
        self.failed, self.got, self.allowed, self.where = failed, got, allowed, where
        super().__init__(f"{failed}\n  got:     {got}\n  allowed: {allowed}\n  where:   {where}")


class FaultsError(SkipbenchError):
    """Several faults told at once, so that a user mends them in one go."""

    def __init__(self, faults: Sequence[InputError]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in faults))


class InvalidRunError(SkipbenchError):
    """A run whose numbers cannot be trusted, such as one with a non-finite logit."""
