"""Finds the position that a sink has stored."""

from __future__ import annotations

from collections.abc import Callable

from multiclouddb_api import CheckpointStore

__all__ = ["stored_position"]


def stored_position(store: CheckpointStore, name: str) -> Callable[[], str | None]:
    """Return a function that reads the position of a sink from its checkpoint store.

    Args:
        store: The checkpoint store of the sink.
        name: The name of its checkpoint.
    """

    def position() -> str | None:
        found = store.load(name)
        return None if found is None else found.token

    return position
