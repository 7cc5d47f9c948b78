"""What the parent tells its child."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

__all__ = ["Order"]


@attrs.frozen
class Order:
    """What the parent wants.

    Attributes:
        url: Where the suite runs.
        name: The name of the run.
        budget: The most that may be spent, in US dollars.
        only: An expression like pytest's `-k`, or None for all tests.
        prices: Prices of the user, each as `UNIT=USD`.
    """

    url: str = attrs.field(repr=False)
    name: str
    budget: float
    only: str | None
    prices: Sequence[str] = ()
