"""The settings of a scripted Cloud Spanner server, which apply as long as no fault is requested."""

from __future__ import annotations

import attrs

__all__ = ["Habits"]


@attrs.define
class Habits:
    """The settings of a server. Each setting can be changed at any time.

    Attributes:
        initial_partitions: The number of partitions in a new change stream.
        moves_keys: True if each split, merge or move may give any key to any open partition, as in
            Google's emulator. If this setting is True, the next change of a key may be in a
            partition that is not a descendant of the key's previous partition.
        first_partition_only: True if all changes go to the oldest open partition.
        mods_per_record: The maximum number of mods in a data change record; None for no limit.
        sequence_step: The amount by which the record sequence of a transaction grows with each record.
        children_per_record: The maximum number of children in a child partitions record; None for no limit.
        repeat_children: The number of times that each child partitions record is sent.
        silent_ends: The number of queries that end at the end of their partition without what they have not
            sent yet: changes, and the names of the children; None for all.
        children_first: True if partitions and children are named in reverse order.
        mixes_equal_timestamps: True if transactions with the same commit timestamp are interleaved, and sent
            in a different order each time. The records of each transaction stay in order.
        rows_per_message: The maximum number of rows in a message of an answer.
        chunk_characters: The maximum number of characters of text in a message. A value that does
            not fit is continued in the next message.
        names_horizon: True if an error about retention contains the earliest timestamp.
        names_lifetime: True if an error about a time outside a partition's lifetime contains the start and
            end of the partition.
        default_retention: The `retention_period` of a stream that sets none, which is listed nowhere.
        multiplexed: True if the server creates a multiplexed session when a client requests one.
    """

    initial_partitions: int = 2
    moves_keys: bool = False
    first_partition_only: bool = False
    mods_per_record: int | None = None
    sequence_step: int = 1
    children_per_record: int | None = None
    repeat_children: int = 0
    silent_ends: int | None = 0
    children_first: bool = False
    mixes_equal_timestamps: bool = False
    rows_per_message: int = 100
    chunk_characters: int = 1_000_000
    names_horizon: bool = True
    names_lifetime: bool = True
    default_retention: str = "1d"
    multiplexed: bool = True
