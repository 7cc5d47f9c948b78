"""Represents shard iterators.

The server stores nothing for an iterator, so a client can use an iterator more than once.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import attrs
import orjson

from multiclouddb_dynamo_emulator.errors import invalid

__all__ = ["ShardIterator"]

# The iterators of the real service are longer than the content of this server's iterators.
_SHORTEST: Final = 215


@attrs.frozen
class ShardIterator:
    """The position in a shard at which the next read starts.

    Attributes:
        arn: The stream's ARN.
        shard_id: The shard's id.
        after: The next read returns only records with a greater sequence number.
        horizon: True to start at the oldest remaining record, even after a trim.
        issued: The time at which the iterator was made, in seconds since 1970.
        epoch: How many times the test expired all iterators before the server made this iterator.
        renewed: True if the iterator came from `GetRecords`.
        empty: The number of pages without records that the server returns for this iterator before
            the first record.
    """

    arn: str
    shard_id: str
    after: int
    horizon: bool
    issued: float
    epoch: int
    renewed: bool = False
    empty: int = 0

    def encoded(self) -> str:
        """Convert the iterator to text."""
        # The number can exceed the integers that the JSON library supports.
        fields = [
            self.arn,
            self.shard_id,
            str(self.after),
            self.horizon,
            self.issued,
            self.epoch,
            self.renewed,
            self.empty,
        ]
        return urlsafe_b64encode(orjson.dumps(fields).ljust(_SHORTEST)).decode()

    @classmethod
    def decoded(cls, text: str) -> ShardIterator:
        """Make an iterator from its encoded text."""
        try:
            fields: list[Any] = orjson.loads(urlsafe_b64decode(text))
            arn, shard_id, after, horizon, issued, epoch, renewed, empty = fields
            return cls(arn, shard_id, int(after), horizon, issued, epoch, renewed, empty)
        except (binascii.Error, TypeError, ValueError):
            raise invalid("Invalid ShardIterator") from None
