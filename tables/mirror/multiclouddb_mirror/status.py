"""Says how a mirrored table is, by the table alone: nothing is written, and the source is not asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import attrs

from multiclouddb_api import ResourceAddress
from multiclouddb_api.set_aside import SetAsideFolder
from multiclouddb_mirror.destinations import PROVED, Destination
from multiclouddb_mirror.setting_aside import rows_of
from multiclouddb_spi.continuation.token import decode_token, to_moment
from multiclouddb_spi.token_report import is_in_snapshot

__all__ = ["MirrorStatus", "mirror_status"]


_TIME: Final = "timestamp"


@attrs.frozen
class MirrorStatus:
    """How a mirrored table is."""

    table: str
    """The name of the table, without secrets."""
    address: ResourceAddress | None
    """The collection; None if neither the position nor the mark of the table names it."""
    exists: bool
    """True if there is a table."""
    rows: int | None
    """The number of rows of existing documents; None if there is no table."""
    deleted: int | None
    """The number of rows that deleted documents have left; None if there is no table."""
    is_copying: bool
    """True if a copy of every row has begun and not ended: the next run goes on with it, and until then rows
    may be missing."""
    watermark: datetime | None
    """The time up to which every change is in the table; None if that is not known, as during a copy."""
    stored_at: datetime | None
    """When the service gave the position; None if none is stored."""
    incomplete_since: str | None
    """Since when the table is marked as incomplete; None if it is not."""
    proved_at: datetime | None
    """When a proof of a mirror (`prove`) has last found the table equal; None if none has."""
    set_aside: int | None
    """As in `MirrorReport`; None without a folder, or if there is no such folder: a mirror makes it with the
    first record that it sets aside."""

    @property
    def lag_seconds(self) -> float | None:
        """How old the newest moment is up to which the table is right; None if that is not known.

        If nothing was written since, the table lacks nothing all the same; `multiclouddb token check
        --max-lag` asks the database.
        """
        if self.watermark is None:
            return None
        return max(0.0, (datetime.now(UTC) - self.watermark).total_seconds())

    def to_dict(self) -> dict[str, Any]:
        """Return the status for JSON."""
        found = attrs.asdict(self, recurse=False)
        found["address"] = None if self.address is None else str(self.address)
        for name in ("watermark", "stored_at", "proved_at"):
            at = found[name]
            found[name] = None if at is None else at.isoformat()
        return {**found, "lag_seconds": self.lag_seconds}


def mirror_status(table: Destination, folder: SetAsideFolder | None = None) -> MirrorStatus:
    """Return how a mirrored table is; nothing is written.

    Args:
        table: The table, from `destination_of`.
        folder: The folder of `set_aside`; None, the default, to leave it out.

    Raises:
        MulticloudDbError: The errors of reading the table, and `INVALID_REQUEST` if it is not one of a
            mirror.
    """
    found, token = table.found(), table.stored()
    position = None if token is None else decode_token(token)
    address = None if position is None else position.address
    if address is None and found is not None and found.mark is not None:
        address = found.mark.address
    rows = deleted = None
    if found is not None:
        rows = deleted = 0
        # A time is shorter than a document.
        times = (_TIME,) if found.mark is not None and _TIME in found.mark.columns else False
        for batch in table.target.rows(own=times):
            gone = sum(batch.column("deleted").to_pylist())
            rows, deleted = rows + batch.num_rows - gone, deleted + gone
    is_copying = token is not None and is_in_snapshot(token)
    at = None if position is None or is_copying else position.watermark
    proved = None if found is None else table.number(PROVED)
    # A mirror makes the folder with the first record; a folder that is not there may as well be a wrong name.
    aside = folder if folder is not None and folder.path.is_dir() else None
    return MirrorStatus(
        table.name,
        address,
        found is not None,
        rows,
        deleted,
        is_copying,
        None if at is None else to_moment(at),
        None if position is None else datetime.fromtimestamp(position.issued_at, UTC),
        None if found is None or found.mark is None else found.mark.incomplete_since,
        None if proved is None else to_moment(proved),
        None if aside is None or address is None else rows_of(aside.records(address, table.name)),
    )
