"""Mutants that behave like the original module, each with a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

import attrs

from mutation.mutant import Mutant

__all__ = ["Equivalent", "read_equivalents", "stale"]


@attrs.frozen
class Equivalent:
    """One entry of `equivalents.toml`: the identity of a mutant, and the reason why no test can find it.

    Attributes:
        file: As `Mutant.file`.
        function: As `Mutant.function`.
        before: As `Mutant.before`.
        after: As `Mutant.after`.
        reason: Why a user of the module sees no difference.
        nth: As `Mutant.nth`: 1 for the second line in the function with the same text.
    """

    file: str
    function: str
    before: str
    after: str
    reason: str = attrs.field(validator=attrs.validators.min_len(20))
    nth: int = 0

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """Equal to the identity of its mutant."""
        return (self.file, self.function, self.before, self.after, self.nth)


def read_equivalents(path: Path) -> list[Equivalent]:
    """The entries of a file.

    Args:
        path: A TOML file with `[[equivalent]]` tables.

    Raises:
        ValueError: An entry is incomplete, or the file contains it twice.
    """
    found: dict[tuple[str, str, str, str, int], Equivalent] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text()).get("equivalent", []), 1):
        try:
            equivalent = Equivalent(**entry)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, entry {number}: {error}") from None
        if equivalent.identity in found:
            raise ValueError(
                f"{path.name}, entry {number}: an entry above it is the same; remove one of them"
            )
        found[equivalent.identity] = equivalent
    return list(found.values())


def stale(equivalents: Iterable[Equivalent], mutants: Iterable[Mutant]) -> list[Equivalent]:
    """Entries whose line or change no longer exists.

    Args:
        equivalents: All entries.
        mutants: Every mutant that is possible, chosen or not.
    """
    possible = {mutant.identity for mutant in mutants}
    return [entry for entry in equivalents if entry.identity not in possible]
