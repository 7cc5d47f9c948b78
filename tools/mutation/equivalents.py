"""Lists mutants that behave like the original module, each with a reason."""

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
        reason: The reason why a user of the module sees no difference.
        nth: The same number as `Mutant.nth`; 1 means the second line with the same text in the function.
    """

    file: str
    function: str
    before: str
    after: str
    reason: str = attrs.field(validator=attrs.validators.min_len(20))
    nth: int = 0

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """Return the identity, which is equal to the identity of the listed mutant."""
        return (self.file, self.function, self.before, self.after, self.nth)


def read_equivalents(path: Path) -> list[Equivalent]:
    """Return the entries of a file.

    Args:
        path: A TOML file with `[[equivalent]]` tables.

    Raises:
        ValueError: Raised if an entry is incomplete, or if the file contains the same entry twice.
    """
    found: dict[tuple[str, str, str, str, int], Equivalent] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text()).get("equivalent", []), 1):
        try:
            equivalent = Equivalent(**entry)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, entry {number}: {error}") from None
        if equivalent.identity in found:
            raise ValueError(f"{path.name}, entry {number}: an earlier entry is the same; remove one of them")
        found[equivalent.identity] = equivalent
    return list(found.values())


def stale(equivalents: Iterable[Equivalent], mutants: Iterable[Mutant]) -> list[Equivalent]:
    """Return the entries whose line or change no longer exists in the code.

    Args:
        equivalents: All entries.
        mutants: All possible mutants, including those that are not chosen.
    """
    possible = {mutant.identity for mutant in mutants}
    return [entry for entry in equivalents if entry.identity not in possible]
