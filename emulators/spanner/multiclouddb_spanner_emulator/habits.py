"""The ways in which a scripted Cloud Spanner behaves, beside the troubles that a test asks for."""

from __future__ import annotations

import attrs

__all__ = ["Habits"]


@attrs.define
class Habits:
    """The ways of a server; any may be changed at any time.

    Attributes:
        initial_partitions: How many partitions a new change stream has.
        moves_keys: True when each split, merge or move gives every key to another partition, as the emulator
            of Cloud Spanner does: a key's next change need not be in a descendant of its partition.
        first_partition_only: True when all changes go to the oldest open partition.
        mods_per_record: How many mods a data change record has at most; None for any number.
        sequence_step: By how much the record sequence of a transaction grows with each record.
        children_per_record: How many children a child partitions record names at most; None for all.
        repeat_children: How often each child partitions record comes again.
        children_first: True when partitions and children are named in reverse order.
        mixes_equal_timestamps: True when transactions with one commit timestamp come in another order, and
            mixed, each time; the records of each stay in order.
        rows_per_message: How many rows an answer's message has at most.
        chunk_characters: A message ends inside a value as soon as it has so many characters of text.
        horizon_is_told: True when an error about retention names the earliest timestamp.
        multiplexed: True when a session says that it is multiplexed, if that was asked for.
    """

    initial_partitions: int = 2
    moves_keys: bool = False
    first_partition_only: bool = False
    mods_per_record: int | None = None
    sequence_step: int = 1
    children_per_record: int | None = None
    repeat_children: int = 0
    children_first: bool = False
    mixes_equal_timestamps: bool = False
    rows_per_message: int = 100
    chunk_characters: int = 1_000_000
    horizon_is_told: bool = True
    multiplexed: bool = True
