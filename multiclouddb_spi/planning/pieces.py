"""Keeps the records that a plan has already read, if they are few: they need not be read a second time."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from multiclouddb_spi.batch import Batch


@frozen
class Piece:
    """Some records of a batch, which was read while a step was planned.

    Attributes:
        batch: The batch; its reader is not needed any more.
        first: The index of the first record.
        stop: The index after the last record.
    """

    batch: Batch
    first: int
    stop: int


class Pieces:
    """The records that one step has read of each partition, from its start to its end or not at all.

    Args:
        most_bytes: About how many bytes of records to keep of all partitions together; 0 to keep nothing.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._kept = dict[str, list[Piece]]()
        self._bytes = dict[str, int]()
        self._incomplete = set[str]()

    def add(self, partition_id: str, batch: Batch, first: int, stop: int) -> None:
        """Keep the next records of a partition."""
        if partition_id in self._incomplete or first == stop:
            return
        size = batch.nbytes * (stop - first) // max(1, len(batch))
        if size > self._left:
            self.drop(partition_id)
            return
        self._left -= size
        self._bytes[partition_id] = self._bytes.get(partition_id, 0) + size
        self._kept.setdefault(partition_id, []).append(Piece(batch, first, stop))

    def drop(self, partition_id: str) -> None:
        """Keep nothing of a partition, because something of it is missing, or lies outside its range."""
        self._incomplete.add(partition_id)
        self._left += self._bytes.pop(partition_id, 0)
        self._kept.pop(partition_id, None)

    def whole(self) -> Mapping[str, tuple[Piece, ...]]:
        """Return the records of the partitions of which everything was kept."""
        return {name: tuple(pieces) for name, pieces in self._kept.items()}
