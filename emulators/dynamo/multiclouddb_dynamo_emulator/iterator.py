"""Shard iterators: the server keeps nothing of them, so they can be used again."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import attrs
import orjson

from multiclouddb_dynamo_emulator.errors import invalid

__all__ = ["ShardIterator"]

# The service's own are longer than what is in ours.
_SHORTEST: Final = 215


@attrs.frozen
class ShardIterator:
    """Where to go on in a shard.

    Attributes:
        arn: The stream's.
        shard_id: The shard's.
        after: The records behind this number come next.
        horizon: True to start at the oldest record that is left, whatever was trimmed.
        issued: When, in seconds since 1970.
        epoch: How often all iterators had been expired by hand by then.
        renewed: True when it came from `GetRecords`.
        empty: So many pages without records are still in front of it.
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
        """As text."""
        # The number is wider than JSON's integers.
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
        """From text."""
        try:
            fields: list[Any] = orjson.loads(urlsafe_b64decode(text))
            arn, shard_id, after, horizon, issued, epoch, renewed, empty = fields
            return cls(arn, shard_id, int(after), horizon, issued, epoch, renewed, empty)
        except (binascii.Error, TypeError, ValueError):
            raise invalid("Invalid ShardIterator") from None
