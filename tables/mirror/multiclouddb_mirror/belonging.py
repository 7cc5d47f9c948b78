"""Refuses a table that belongs to another collection, or has lost the rows from before its position."""

from __future__ import annotations

from multiclouddb_api import (
    ChangeFeedPage,
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_mirror.destinations import Destination
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_tables.mark import FeedSource, TableMark

__all__ = ["check_own", "check_rows", "check_same_feed"]


def check_own(table: Destination, address: ResourceAddress, stored: str) -> None:
    """Refuse the position of another collection.

    Args:
        table: The table.
        address: The collection.
        stored: The position that is stored for the table.
    """
    found = decode_token(stored).address
    if found.collection != address.collection or address.database not in (None, found.database):
        raise invalid_request(
            "target",
            f"{table.name} follows {found}, and not {address}",
            "name another table",
            ErrorReason.WRONG_RESOURCE,
        )


def check_rows(table: Destination, mark: TableMark | None) -> None:
    """Refuse a stored position without the rows from before it.

    Args:
        table: The table.
        mark: The mark on it; None if there is no table, or none on it.
    """
    if mark is None:
        raise MulticloudDbError(
            f"target: a position is stored for {table.name}, but there is no such table, or one that "
            "was made again; run once with resync=True (--resync), which copies the collection again",
            ErrorDetail(ErrorCategory.NOT_FOUND, reason=ErrorReason.ROWS_MISSING),
        )


def check_same_feed(table: Destination, mark: TableMark | None, page: ChangeFeedPage) -> None:
    """Refuse the table of another collection: a snapshot would bury all of its rows.

    Args:
        table: The table.
        mark: The mark on it; None if there is no table, or none on it.
        page: A page of the collection.
    """
    source = FeedSource.of_page(page)
    if mark is None or source is None or (mark.provider, mark.address) == (source.provider, source.address):
        return
    raise invalid_request(
        "target",
        f"{table.name} is the table of {mark.source}, and not of {source}",
        "name another table; or pass adopt=True (--adopt), which buries the rows that it has",
        ErrorReason.WRONG_RESOURCE,
    )
