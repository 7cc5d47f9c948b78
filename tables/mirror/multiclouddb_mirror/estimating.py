"""Says what the first run of a mirror will read, and whether it may: nothing is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

import attrs

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbClient,
    MulticloudDbError,
    Now,
    ProviderOptions,
    ResourceAddress,
)
from multiclouddb_mirror.advice import advising
from multiclouddb_mirror.belonging import check_own, check_rows, check_same_feed
from multiclouddb_mirror.declaration import declaration_of, fills_columns
from multiclouddb_mirror.destinations import Destination
from multiclouddb_mirror.documents import document_mode, without_documents
from multiclouddb_tables.columns import Columns

if TYPE_CHECKING:
    from multiclouddb_verify import Estimate

__all__ = ["MirrorEstimate", "estimate_mirror"]


@attrs.frozen
class MirrorEstimate:
    """What the next run of a mirror will do."""

    address: ResourceAddress
    """The collection."""
    table: str
    """The name of the table, without secrets."""
    begins: Literal["snapshot", "position"]
    """Whether it will copy every row, or go on at the stored position."""
    scan: Estimate | None
    """What a copy of every row reads; None if the collection cannot be read."""
    may_write: bool | None
    """Whether the table can be made or written; None if that is not known, as in an object store."""
    problems: tuple[MulticloudDbError, ...]
    """Why a run would fail; empty if nothing is known."""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate for JSON."""
        return {
            "address": str(self.address),
            "table": self.table,
            "begins": self.begins,
            "scan": None if self.scan is None else attrs.asdict(self.scan),
            "may_write": self.may_write,
            "problems": [
                {"category": str(each.category), "reason": each.reason, "message": each.message}
                for each in self.problems
            ],
        }


def estimate_mirror(
    client: MulticloudDbClient,
    address: ResourceAddress | str,
    table: Destination,
    *,
    columns: Columns | str | os.PathLike[str] | None = None,
    refill: bool = False,
    max_scan_rate: float | None = None,
    provider_options: ProviderOptions | None = None,
) -> MirrorEstimate:
    """Return what a run will read and cost, and whether rights and settings are there.

    No row is read, and nothing is written. Every problem is told, not only the first.

    Args:
        client: The client of the source.
        address: The collection, or its text.
        table: The table, from `destination_of`.
        columns: As `mirror` will get it; another declaration than the table has is a problem.
        refill: As `mirror` will get it.
        max_scan_rate: As `mirror` will get it.
        provider_options: As `mirror` will get them.
    """
    from multiclouddb_verify import estimate

    address = ResourceAddress.parse(address) if isinstance(address, str) else address
    problems, scan, stored, may_write = list[MulticloudDbError](), None, None, None
    page: ChangeFeedPage | None = None
    refills = False
    try:
        scan = estimate(client, address, max_scan_rate=max_scan_rate, provider_options=provider_options)
        # The feed may be switched off, or be refused, where the collection can be read.
        documents = document_mode(client, "snapshot", provider_options)
        page = client.read_changes(
            ChangeFeedRequest(
                address, Now(), new_item_state_mode=documents, provider_options=provider_options
            )
        )
    except MulticloudDbError as error:
        problems.append(without_documents(error))
    try:
        stored = table.stored()
        lacking = table.lacking_right()
        may_write = None if lacking == "" else lacking is None
        if lacking:
            problems.append(
                MulticloudDbError(
                    f"target: the user may not write {table.name}: {lacking} is missing; grant it",
                    ErrorDetail(ErrorCategory.AUTHORIZATION_FAILED),
                )
            )
        found = table.found()
        if found is not None and found.mark is None and stored is None:
            problems.append(
                MulticloudDbError(
                    f"target: there is {table.name}, and it has no mark of a mirror; name a new table, or "
                    "pass adopt=True (--adopt) to the run",
                    ErrorDetail(ErrorCategory.INVALID_REQUEST),
                )
            )
        mark = None if found is None else found.mark
        if stored is not None:
            check_own(table, address, stored)
            if found is None or not table.is_kept:
                check_rows(table, mark)
        elif page is not None:
            check_same_feed(table, mark, page)
        with advising():
            refills = fills_columns(table, declaration_of(columns, mark), mark, stored, agreed=refill)
    except MulticloudDbError as error:
        problems.append(error)
    begins: Literal["snapshot", "position"] = "snapshot" if stored is None or refills else "position"
    return MirrorEstimate(address, table.name, begins, scan, may_write, tuple(problems))
