"""Says how to repair a table after changes were lost, in the words of Spark."""

from __future__ import annotations

from typing import Final

from multiclouddb_spi.faults import AFTER_AN_OUTAGE

__all__ = ["REPAIR"]

REPAIR: Final = (
    "to also repair what changes that were never read have left wrong, start the query with "
    "startingPosition=snapshot, a new checkpointLocation and a new app_id, and pass checkpoint= to "
    f"merge_into_delta; see {AFTER_AN_OUTAGE}"
)
"""The way out that repairs a table, for messages."""
