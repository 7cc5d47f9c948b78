"""Plants defects in `verify`, each of which the lives of `testing.model_lives` must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import attrs

from multiclouddb_tables.mark import FeedSource
from multiclouddb_verify.repair import _Plan
from multiclouddb_verify.sides import Sides
from multiclouddb_verify.state import State
from testing.model_lives import RefusingClient

__all__ = ["PLANTED", "lives_until_noticed"]

_MOST: Final = 100
"""The number of lives within which a defect has to be noticed."""


@contextmanager
def _a_resume_reads_the_old_table() -> Iterator[None]:
    take_up, read_table = State._take_up, Sides.read_table

    def take_up_all(state: Any) -> None:
        state._sql("UPDATE run SET side = 'old' WHERE side = 'target'")
        take_up(state)

    def read_old(sides: Any) -> None:
        if sides.state.count("old"):
            sides.state._sql("UPDATE run SET side = 'target' WHERE side = 'old'")
        else:
            read_table(sides)

    with patch.object(State, "_take_up", take_up_all), patch.object(Sides, "read_table", read_old):
        yield


@contextmanager
def _a_mark_is_ignored() -> Iterator[None]:
    with patch.object(FeedSource, "may_be", lambda *_: True):
        yield


@contextmanager
def _a_refusal_is_an_absence() -> Iterator[None]:
    row = _Plan._row

    def believes(plan: Any, each: Any, event: Any) -> None:
        row(plan, attrs.evolve(each, expected=plan._digest(event)), event)

    def absent(_: Any, keys: Any) -> Any:
        return dict.fromkeys(keys)

    with patch.object(RefusingClient, "refuse", absent), patch.object(_Plan, "_row", believes):
        yield


@contextmanager
def _a_foreign_text_is_overwritten() -> Iterator[None]:
    def foreign(plan: Any, each: Any, text: str, event: Any, beside: Any) -> None:
        del text, beside
        plan._row(attrs.evolve(each, expected=plan._digest(event)), event)

    with patch.object(_Plan, "_foreign", foreign):
        yield


PLANTED: Final = {
    "a resume reads the old table": _a_resume_reads_the_old_table,
    "a mark is ignored": _a_mark_is_ignored,
    "a refusal is an absence": _a_refusal_is_an_absence,
    "a foreign text is overwritten": _a_foreign_text_is_overwritten,
}
"""The defects by their names; each is there while its context is open."""


def lives_until_noticed(name: str, live: Callable[[int], object]) -> int | None:
    """Return how many lives it takes until the model notices a defect; None if a hundred do not notice it.

    Args:
        name: The name of the defect in `PLANTED`.
        live: Lives the life of a seed.
    """
    with PLANTED[name]():
        for seed in range(_MOST):
            try:
                live(seed)
            except AssertionError:
                return seed + 1
    return None
