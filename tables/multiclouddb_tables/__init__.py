"""Tables that sinks keep equal to a collection: the rules of a merge, and what each kind of table does."""

from __future__ import annotations

from multiclouddb_tables.batch import Create, MissingState
from multiclouddb_tables.column_values import ColumnType
from multiclouddb_tables.columns import Column, Columns, Misfits
from multiclouddb_tables.contract import (
    Fix,
    Own,
    Part,
    SupportsHeld,
    SupportsLeftOut,
    SupportsParts,
    SupportsPosition,
    SupportsRecord,
    SupportsUnheld,
    Table,
    Target,
)
from multiclouddb_tables.mark import Expected, FeedSource, FoundTable, TableMark
from multiclouddb_tables.merging import merge_changes

__all__ = [
    "Column",
    "ColumnType",
    "Columns",
    "Create",
    "Expected",
    "FeedSource",
    "Fix",
    "FoundTable",
    "Misfits",
    "MissingState",
    "Own",
    "Part",
    "SupportsHeld",
    "SupportsLeftOut",
    "SupportsParts",
    "SupportsPosition",
    "SupportsRecord",
    "SupportsUnheld",
    "Table",
    "TableMark",
    "Target",
    "merge_changes",
]
