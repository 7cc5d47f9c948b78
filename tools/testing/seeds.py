"""The seeds of random lives: a few in `make test`, and each night others in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pytest

__all__ = ["in_soak", "seeds", "tonight"]

_T = TypeVar("_T")
_NAME: Final = "SOAK_SEED"


def _first() -> int:
    given = os.environ.get(_NAME, "0")
    if not given.isascii() or not given.isdecimal():
        raise pytest.UsageError(f"{_NAME} is {given!r}, but it has to be a whole number: the first seed")
    return int(given)


def in_soak(kept: int, more: int) -> range:
    """Return the seeds of `make soak`, which begin at `SOAK_SEED`.

    Args:
        kept: The least of them, which comes after the seeds of `make test`.
        more: How many there are.
    """
    first = max(kept, _first())
    return range(first, first + more)


def seeds(kept: int | range, more: int, *before: Any) -> list[Any]:
    """Return the values of a parametrized seed, or of parameters of which the last is a seed.

    Args:
        kept: The seeds of `make test`, or the number of them, from 0 on.
        more: How many follow in `make soak`; they begin at `SOAK_SEED`, or after the kept ones.
        before: The values of the parameters before the seed.
    """
    kept = range(kept) if isinstance(kept, int) else kept
    soak = in_soak(kept.stop, more)
    return [
        *(pytest.param(*before, seed) for seed in kept),
        *(pytest.param(*before, seed, marks=pytest.mark.soak) for seed in soak),
    ]


def tonight(values: Sequence[_T], nights: int) -> list[_T]:
    """Return a share of the values; in so many nights, each of them has its turn.

    A night is the thousand of seeds in which `SOAK_SEED` is.
    """
    return list(values)[_first() // 1000 % nights :: nights]
