"""Keeps a table of PostgreSQL equal to a collection, and stores checkpoints in PostgreSQL."""

from __future__ import annotations

from multiclouddb_postgres.checkpoints import PostgresCheckpointStore
from multiclouddb_postgres.sink import merge_into_postgres
from multiclouddb_postgres.target import PostgresTarget

__all__ = ["PostgresCheckpointStore", "PostgresTarget", "merge_into_postgres"]
