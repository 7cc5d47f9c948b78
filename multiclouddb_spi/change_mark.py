"""An ability that makes an idle feed of many partitions cheap to poll."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from multiclouddb_spi.deadline import Deadline

__all__ = ["SupportsChangeMark"]


@runtime_checkable
class SupportsChangeMark(Protocol):
    """A feed of any number of partitions that can find out with one cheap call that nothing has changed."""

    def change_mark(self, deadline: Deadline) -> Hashable:
        """A value that stays equal as long as no record, partition or end is added to the feed or lost.

        The engine then returns the last idle page again, with the same token. So a feed whose positions or
        watermark advance without changes, or whose positions expire with time, must not have this ability.

        Args:
            deadline: When the call has to be over.

        Returns:
            The value. The engine compares it with earlier values of this feed in the same process. A change
            without a reason is harmless, but costs a call to each partition.
        """
        ...
