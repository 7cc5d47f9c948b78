"""A method that some providers have; it makes an idle feed of many partitions cheap to poll."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from multiclouddb_spi.deadline import Deadline

__all__ = ["SupportsChangeMark"]


@runtime_checkable
class SupportsChangeMark(Protocol):
    """A feed of any number of partitions that can find out with one cheap call that nothing has changed."""

    def change_mark(self, deadline: Deadline) -> Hashable:
        """Return a value that stays equal until a record, partition or end is added to the feed or lost.

        If the value is equal, the engine returns the last idle page again, with the same token. So a feed
        must not implement this method if its positions or watermark advance without changes, or if its
        positions expire as time passes.

        Args:
            deadline: The time at which the call must be over.

        Returns:
            The value. The engine compares the value with earlier values of this feed in the same process. If
            the value changes without a reason, this does no harm, but costs one call to each partition.
        """
        ...
