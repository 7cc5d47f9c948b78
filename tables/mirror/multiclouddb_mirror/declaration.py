"""Says which columns a run of a mirror declares, and whether a copy of every row has to fill them."""

from __future__ import annotations

import os

from multiclouddb_api import invalid_request
from multiclouddb_api.validators import check_type
from multiclouddb_mirror.destinations import Destination
from multiclouddb_spi.token_report import is_in_snapshot
from multiclouddb_tables.columns import Columns
from multiclouddb_tables.mark import TableMark

__all__ = ["declaration_of", "fills_columns"]


def declaration_of(given: Columns | str | os.PathLike[str] | None, mark: TableMark | None) -> Columns | None:
    """Return the declaration of a run: the given one, else that of the table.

    Args:
        given: See `MirrorSettings.columns`.
        mark: The mark of the table; None if it has none.
    """
    if isinstance(given, str | os.PathLike):
        return Columns.from_toml(given)
    check_type("columns", given, Columns, type(None))
    return given if given is not None or mark is None else mark.declared


def fills_columns(
    table: Destination, columns: Columns | None, mark: TableMark | None, stored: str | None, *, agreed: bool
) -> bool:
    """Refuse another declaration than the table has; return whether a copy has to fill its columns.

    The merge asks too, but without a change there is none, and the run would seem to be right.

    Args:
        table: The table.
        columns: The declaration of the run.
        mark: The mark of the table; None if it has none.
        stored: The stored position.
        agreed: See `MirrorSettings.refill`.
    """
    if columns is None:
        if agreed:
            raise invalid_request("refill", "is given without a declaration", "give columns= (--columns) too")
        return False
    if mark is None:
        return False
    fills = table.check_declaration(columns, refill=agreed)
    # A copy that fills them may have been killed before it stored a position; the one that is stored then
    # comes from before the copy, and going on there would leave the columns empty.
    return fills and (agreed or stored is None or not is_in_snapshot(stored))
