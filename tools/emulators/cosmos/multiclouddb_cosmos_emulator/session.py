"""Handles session tokens, which contain the latest LSN that a client has seen of each partition."""

from __future__ import annotations

from collections.abc import Iterable

from multiclouddb_cosmos_emulator.errors import ServiceError, bad_request
from multiclouddb_cosmos_emulator.partition import Partition

__all__ = ["check_session", "session_token"]


def session_token(partitions: Iterable[Partition], lag: int = 0) -> str:
    """Return a session token.

    The token contains `range:version#lsn#region=lsn` for each given partition.
    """
    return ",".join(f"{each.range_id}:0#{(lsn := each.lsn_of_replica(lag))}#1={lsn}" for each in partitions)


def check_session(text: str, partitions: Iterable[Partition], lag: int = 0) -> None:
    """Refuse a read if the client has already seen a later state of a partition."""
    there = {partition.range_id: partition.lsn_of_replica(lag) for partition in partitions}
    for part in text.split(","):
        range_id, _, vector = part.partition(":")
        if range_id in there and _lsn(vector) > there[range_id]:
            raise ServiceError(404, "The read session is not available for the input session token.", 1002)


def _lsn(vector: str) -> int:
    numbers = vector.split("#")
    try:
        return int(numbers[1] if len(numbers) > 1 else numbers[0])
    except ValueError:
        raise bad_request("The session token provided is invalid.") from None
