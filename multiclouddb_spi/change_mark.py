"""An ability that makes an idle feed of many partitions cheap to poll."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from multiclouddb_spi.deadline import Deadline

__all__ = ["SupportsChangeMark"]


@runtime_checkable
class SupportsChangeMark(Protocol):
    """A feed that can say with one cheap call that nothing has changed, however many partitions it has."""

    def change_mark(self, deadline: Deadline) -> Hashable:
        """A value that stays equal while the feed has no new record, partition or end, and loses none.

        Args:
            deadline: When it has to be over.

        Returns:
            The value; it is compared with earlier ones of this feed, in the same process. It may change
            without a reason: that costs a call to each partition.
        """
        ...
