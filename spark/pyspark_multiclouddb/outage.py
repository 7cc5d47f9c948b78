"""Says how to repair a table after changes were lost, in the words of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multiclouddb_api import Snapshot
from multiclouddb_spi.faults import AFTER_AN_OUTAGE

if TYPE_CHECKING:
    from pyspark_multiclouddb.options import Settings

__all__ = ["EXPIRED", "NEW_QUERY", "REPAIR", "start_warning"]

NEW_QUERY: Final = (
    "start a query with startingPosition=snapshot, a new checkpointLocation and a new app_id, and pass "
    "checkpoint= to merge_into_delta"
)
"""The new query that repairs a table."""

REPAIR: Final = (
    "rows that were deleted or changed while no query read the feed stay wrong; to repair the table, "
    f"{NEW_QUERY}; see {AFTER_AN_OUTAGE}"
)
"""The way out if a query has missed changes, or may have missed them."""

EXPIRED: Final = (
    "set failOnDataLoss=resnapshot, which reads every row again and repairs the table of "
    f"merge_into_delta(…, checkpoint=…); if the failed batch was planned before the changes expired, "
    f"{NEW_QUERY}; or set failOnDataLoss=false, which, like any other start of a new query, never delivers "
    "the lost changes: deleted rows stay, changed rows stay old and new rows are missing; see "
    f"{AFTER_AN_OUTAGE}"
)
"""The advice for `CHECKPOINT_EXPIRED`."""


def start_warning(settings: Settings) -> str | None:
    """Return what a query that does not begin with a snapshot leaves wrong in a table that has rows.

    Args:
        settings: The options of the query.
    """
    if isinstance(settings.start, Snapshot):
        return None
    return f"the query does not begin with a snapshot; if its table already has rows, then {REPAIR}"
