"""Counts which of the tables that may share one reading of a database are read alone."""

from __future__ import annotations

from collections import Counter

import pytest

from multiclouddb_mirror import table_reading

__all__ = ["read_alone"]


def read_alone(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the collections that are read alone by one of several tables, each as often as it is."""
    found, pages = Counter[str](), table_reading._TableChanges._alone

    def counted(changes: table_reading._TableChanges) -> object:
        if changes._reading.shared is not None:
            found[changes._request.address.collection or ""] += 1
        return pages(changes)

    monkeypatch.setattr(table_reading._TableChanges, "_alone", counted)
    return found
