"""The audit of coverage, for bounded reads."""

from __future__ import annotations

import logging
from typing import Final

from multiclouddb_api import PartitionFoundLate
from multiclouddb_spi.checkpoint.coverage import add_uncovered, audit_failed, find_uncovered, is_audit_due
from multiclouddb_spi.checkpoint.lineage import Lineage
from multiclouddb_spi.checkpoint.retention import Retention, stranded_fault
from multiclouddb_spi.contract import Feed, Provider
from multiclouddb_spi.deadline import Deadline
from multiclouddb_spi.failure import fault_of

__all__ = ["audit"]

_MOST_SECONDS: Final = 10.0
_log = logging.getLogger("multiclouddb.planner")


def audit(
    provider: Provider,
    feed: Feed,
    lineage: Lineage,
    retention: Retention,
    every: float,
    deadline: Deadline,
    *,
    skip: bool,
) -> tuple[PartitionFoundLate, ...]:
    """Compare a lineage with what the service lists, when that is due; one that fails costs no plan.

    Args:
        provider: Classifies failures.
        feed: Whose lineage.
        lineage: Takes up what is found.
        retention: What the service still has.
        every: Seconds from one audit to the next.
        deadline: When it has to be over.
        skip: True to go on without what retention has taken.

    Raises:
        ProviderFault: `CHECKPOINT_EXPIRED`: retention took a partition before it was listed.
    """
    if not is_audit_due(lineage.audited, every):
        return ()
    try:
        seeds = find_uncovered(feed, lineage, deadline.sooner(_MOST_SECONDS))
        found = tuple(add_uncovered(feed, lineage, seeds))
        stranded = retention.stranded(lineage)
    except Exception as error:  # noqa: BLE001 - it is tried again soon
        reason = fault_of(provider, error).message
        _log.warning("%s: coverage could not be audited (%s)", feed.spec.address, reason)
        audit_failed(lineage)
        return ()
    for name in stranded:
        lost = stranded_fault(feed.public_id(name))
        if not skip:
            raise lost
        _log.warning("%s: %s", feed.spec.address, lost)
        lineage.release(name)
    for late in found:
        _log.warning("%s: %s was not covered, and is read from now on", feed.spec.address, late.partition_id)
    return found
