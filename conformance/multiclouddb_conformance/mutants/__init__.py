"""Deliberately broken readers, each with one defect, which prove that the suite finds defects.

`python -m multiclouddb_conformance.mutants` prints which tests catch which mutant. There is no list of
mutants: every public class in `ending`, `reading`, `scanning` and `telling` is a mutant.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from multiclouddb_conformance.mutants import ending, reading, scanning, telling
from multiclouddb_conformance.mutants.mutant import Mutant, harness_of

__all__ = ["MUTANTS", "Mutant", "harness_of", "mutant_table"]


def _defined_in(module: ModuleType) -> list[type[Mutant]]:
    """Return the public classes of a module, in the order of definition."""
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Mutant)]
    return [
        each for each in classes if each.__module__ == module.__name__ and not each.__name__.startswith("_")
    ]


MUTANTS: Final[tuple[type[Mutant], ...]] = (
    *_defined_in(ending),
    *_defined_in(reading),
    *_defined_in(scanning),
    *_defined_in(telling),
)
"""All mutants; those with defects in partitions come first."""


def mutant_table() -> str:
    """Return a Markdown table of each mutant, its defect and the tests that must detect it."""
    rows = ["| mutant | defect | caught by |", "|---|---|---|"]
    for mutant in MUTANTS:
        defect = (mutant.__doc__ or "").partition("\n")[0]
        tests = "<br>".join(f"`{name}`" for name in mutant.caught_by)
        rows.append(f"| `{mutant.__name__}` | {defect} | {tests} |")
    return "\n".join(rows)
