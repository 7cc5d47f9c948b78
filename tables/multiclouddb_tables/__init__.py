"""Tables that sinks keep equal to a collection: the rules of a merge, and what each kind of table does."""

from __future__ import annotations

from multiclouddb_tables.column_values import ColumnType
from multiclouddb_tables.contract import Fix, Part, SupportsParts, SupportsRecord, Target

__all__ = ["ColumnType", "Fix", "Part", "SupportsParts", "SupportsRecord", "Target"]
