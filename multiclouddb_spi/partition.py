"""Encodes and decodes the partition ids that applications see; each id identifies its resource.

    dynamo:1f3a9c2b.77e01d5c:shardId-00000001541626099285-f35f62ef
    provider:address.incarnation:the service's own id

The address and the incarnation are digests, so an id of another resource is detected, and an id reveals no
names, except that a segment of a database's scan names its collection.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from attrs import frozen

from multiclouddb_api import ErrorReason, MulticloudDbError, ResourceAddress, invalid_request
from multiclouddb_api.codec import canonical_json

_FIELD = "PhysicalPartition.partition_id"
_WAY_OUT = "take one from client.list_physical_partitions(address) of this resource"


@lru_cache(maxsize=256)
def _digest(*parts: str | None) -> str:
    return hashlib.sha256(canonical_json(list(parts))).hexdigest()[:8]


def encode_partition_id(
    provider_id: str, address: ResourceAddress, incarnation: str | None, partition_id: str
) -> str:
    """Return the public id of a service's partition.

    Args:
        provider_id: The provider's id.
        address: The resource.
        incarnation: The incarnation of the resource, or None.
        partition_id: The service's own id of the partition.
    """
    return f"{provider_id}:{address_digest(address)}.{incarnation_digest(incarnation)}:{partition_id}"


def address_digest(address: ResourceAddress) -> str:
    """Return the digest of an address, as it stands in the ids of its partitions."""
    return _digest(address.database, address.collection)


def incarnation_digest(incarnation: str | None) -> str:
    """Return the digest of an incarnation, as it stands in the ids of its partitions.

    It does not contain the deployment (see `FeedIdentity.incarnation`), so that an id stays the same if a
    user learns the deployment only later.
    """
    return _digest(None if incarnation is None else incarnation.partition("@")[0] or None)


def may_be_same(incarnation: str | None, other: str | None) -> bool:
    """Return False if two incarnations are known to be of different resources."""
    here, there, unknown = map(incarnation_digest, (incarnation, other, None))
    return here == there or unknown in (here, there)


@frozen
class PartitionId:
    """The parts of a public id; its provider and address have already been checked.

    Attributes:
        native: The service's own id of the partition.
        incarnation_digest: A digest of the incarnation of the partition's resource.
    """

    native: str
    incarnation_digest: str

    def check_incarnation(self, address: ResourceAddress, incarnation: str | None) -> None:
        """Refuse the id if its resource was deleted and created again.

        The engine calls this method after it has opened the feed.

        Args:
            address: The address of the resource, for the message.
            incarnation: The current incarnation of the resource, or None if it is not known.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the resource was deleted and created again.
        """
        here, unknown = incarnation_digest(incarnation), incarnation_digest(None)
        if self.incarnation_digest != here and unknown not in (self.incarnation_digest, here):
            raise _foreign(
                f"belongs to an earlier {address}, which was recreated under the same name",
                ErrorReason.RECREATED,
            )


def decode_partition_id(public_id: str, provider_id: str, address: ResourceAddress) -> PartitionId:
    """Split a public id into its parts, if it belongs to this provider and address.

    Args:
        public_id: The id that the application has passed.
        provider_id: The id of the provider to which the partition must belong.
        address: The address of the resource to which the partition must belong.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` with a message that says what does not match.
    """
    provider, _, rest = public_id.partition(":")
    where, _, native = rest.partition(":")
    place, _, which = where.partition(".")
    if not (place and which and native):
        raise invalid_request(_FIELD, f"{public_id!r} is not a partition id", _WAY_OUT, ErrorReason.MALFORMED)
    if provider != provider_id:
        raise _foreign(
            f"belongs to provider {provider!r}, not to {provider_id!r}", ErrorReason.WRONG_PROVIDER
        )
    if place != address_digest(address):
        raise _foreign(f"belongs to another resource, not to {address}", ErrorReason.WRONG_RESOURCE)
    return PartitionId(native, which)


def _foreign(problem: str, reason: ErrorReason) -> MulticloudDbError:
    return invalid_request(_FIELD, problem, _WAY_OUT, reason)
