"""Names the groups of steps that are explored together, and says in words what was explored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import attrs

from multiclouddb_conformance.explore.search import Result, Violation
from multiclouddb_conformance.explore.world import Bounds, Kind, Scope

__all__ = ["GROUPS", "bounds_of", "chosen", "default_depth", "random_bounds", "said", "test_of"]

GROUPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "base": {},
    "crash": {"crash": True},
    "fails": {"fails": True},
    "descendants": {"scope": Scope.DESCENDANTS},
    "key": {"scope": Scope.KEY},
    "scan": {"scan": True, "released": True},
    "cut": {"cut": True, "crash": True},
    "empty": {"empty": True},
}
"""The bounds of each group; the steps of `base` belong to all of them."""


def bounds_of(kind: Kind, group: str) -> Bounds:
    """Return what may happen in a group."""
    return Bounds(kind, **GROUPS[group])


def random_bounds(kind: Kind, group: str) -> Bounds:
    """Return what may happen in a random history of a group: also crashes, cut pages and empty partitions."""
    return attrs.evolve(bounds_of(kind, group), crash=True, cut=True, empty=True)


def default_depth(group: str) -> int:
    """Return the default depth of a group: together they take less than a minute."""
    return 5 if group == "base" else 4


def said(what: str, result: Result) -> str:
    """Return one line about all histories of a kind and group, or of a service and reader."""
    words = f"{what}:".ljust(20)
    broken = len(result.violations)
    over = "" if result.complete or broken else "; the time was over before the next depth"
    return (
        f"{words} all histories of at most {result.depth} steps over at most {result.partitions} partitions: "
        f"{result.states:,} states, {result.transitions:,} transitions, {broken} violations "
        f"({result.seconds:.1f} s){over}"
    )


def test_of(bounds: Bounds, violation: Violation, number: int) -> str:
    """Return a test that fails as long as a promise is broken."""
    steps = "".join(f'        "{step}",\n' for step in violation.history)
    return (
        f"def test_history_{number}():\n"
        f"    # {violation.problem}\n"
        f"    replay(\n        {_written(bounds)},\n        (\n"
        + steps.replace("        ", "            ")
        + "        ),\n    )\n"
    )


def _written(bounds: Bounds) -> str:
    given = list(_given(bounds))
    return f"Bounds({', '.join(given)})"


def _given(bounds: Bounds) -> Iterator[str]:
    yield str(bounds.kind)
    for field in attrs.fields(Bounds)[1:]:
        value = getattr(bounds, field.name)
        if value != field.default:
            yield f"{field.name}={value}"


def chosen(kinds: Collection[str], groups: Collection[str]) -> list[tuple[Kind, str]]:
    """Return each pair of a kind and a group; an empty choice means all."""
    return [
        (kind, group)
        for kind in Kind
        if not kinds or kind.value in kinds
        for group in GROUPS
        if not groups or group in groups
    ]
