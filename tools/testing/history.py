"""Tells what happened in a life before it failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["History"]


class History:
    """What has happened in a life, in order.

    Args:
        seed: The seed from which the life's choices come.
    """

    def __init__(self, seed: object) -> None:
        self.seed, self.events = seed, list[str]()

    def add(self, event: str) -> None:
        """Add what happens next."""
        self.events.append(event)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Add the history to an error, so that pytest prints both."""
        try:
            yield
        except Exception as error:
            lines = (f"{number:4} {event}" for number, event in enumerate(self.events))
            error.add_note("\n".join([f"The life of seed {self.seed}:", *lines]))
            raise
