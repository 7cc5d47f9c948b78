"""Damages rows of the table, one for each kind of difference that `multiclouddb verify` knows."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

from demo.places import Places
from demo.stores import open_store
from demo.targets import target_of
from multiclouddb_verify import DifferenceKind

__all__ = ["plant"]


def plant(places: Places) -> dict[str, DifferenceKind]:
    """Damage rows of flights that do not change any more; return the kinds by key."""
    # The first rows of the snapshot have its floor, and their flights are past.
    target = target_of(places)
    keys = [key for key, _ in islice(target.rows(), len(target.kinds))]
    faults = {}
    for key, kind in zip(keys, target.kinds, strict=True):
        if kind is DifferenceKind.GHOST:
            with closing(open_store()) as store:
                key = store.key({"origin": "JFK", "date": "1913-01-01", "carrier": "XX", "flight": 1})
        target.damage(key, kind)
        faults[key] = kind
    return faults
