"""Defines the key of a document in a form that is the same for every database."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from itertools import repeat
from typing import Any

import attrs
from attrs import frozen

from multiclouddb_api.codec import encode_json
from multiclouddb_api.errors import invalid_request
from multiclouddb_api.redaction import shorten
from multiclouddb_api.validators import Slotted, is_a, to_dict


def _plain(value: Any) -> Any:
    """Normalize decimals, because databases treat 1.50 and 1.5 as the same key."""
    if isinstance(value, Decimal) and value.is_finite():
        # A separate context is used, because the thread's context would round the value to 28 digits.
        digits = len(value.as_tuple().digits)
        return value.normalize(Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX))
    return value


def _copied(components: Mapping[str, Any]) -> dict[str, Any]:
    return to_dict("MulticloudDbKey.components", components)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise invalid_request("MulticloudDbKey.components", f"has the name {name!r}", "names are text")


@frozen(eq=False, hash=False)
class MulticloudDbKey(Slotted):
    """Ordered components that identify one document; the first components form the partition key.

    Two keys are equal if their components have the same names, order, types and values. So `True`, `1` and
    `1.0` make three different keys, and MongoDB's `_id`s `{"a": 1, "b": 2}` and `{"b": 2, "a": 1}` make two.

    Examples:
        >>> key = MulticloudDbKey({"customer": "c-1", "order": 7})
        >>> key["order"], len(key), dict(key)
        (7, 2, {'customer': 'c-1', 'order': 7})
        >>> key.partition_key, key.sort_key
        ({'customer': 'c-1'}, {'order': 7})

    Portability:
        A key has the components of the service's own key: on DynamoDB the partition key and at most one sort
        key, on Cosmos DB up to three partition key components and `id`, on MongoDB `_id` of any type (in a
        sharded collection, the shard key comes before it). Spanner's primary keys have no partition key, so
        the first column is treated as one. See warning 21 in docs/configuration.md.
    """

    components: Mapping[str, Any] = attrs.field(converter=_copied, repr=shorten)
    """Maps the name of each component to its value, in the database's own order; the key keeps a copy."""
    partition_components: int = attrs.field(default=1, validator=is_a(int))
    """The number of components, counted from the first, that form the partition key; 1 by default."""

    def __attrs_post_init__(self) -> None:
        if not self.components:
            raise invalid_request("MulticloudDbKey.components", "is empty", "name at least one component")
        for name in self.components:
            _check_name(name)
        if not 1 <= self.partition_components <= len(self.components):
            raise invalid_request(
                "MulticloudDbKey.partition_components",
                f"is {self.partition_components} for {len(self.components)} components",
                "give the number of leading components that form the partition key, at least 1",
            )

    @property
    def partition_key(self) -> dict[str, Any]:
        """The components of the partition key, as a mapping from name to value."""
        return dict(list(self.components.items())[: self.partition_components])

    @property
    def sort_key(self) -> dict[str, Any]:
        """The components after the partition key, as a mapping from name to value; possibly none."""
        return dict(list(self.components.items())[self.partition_components :])

    def keys(self) -> KeysView[str]:
        """Return the names of the components in their order; because of it, `dict(key)` works."""
        return self.components.keys()

    def __getitem__(self, name: str) -> Any:
        try:
            return self.components[name]
        except KeyError:
            names = ", ".join(map(repr, self.components))
            raise KeyError(f"{name!r} is no component of this key, which has {names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.components)

    def __len__(self) -> int:
        return len(self.components)

    def canonical(self) -> bytes:
        """Return the key's JSON text, which is the same for equal keys in every process and version."""
        pairs = [[name, _plain(value)] for name, value in self.components.items()]
        return encode_json([self.partition_components, pairs])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MulticloudDbKey):
            return NotImplemented
        return self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())


class _Draft(Slotted):
    """A key under construction, whose attributes can be set; it has the same slots as a key."""

    __slots__ = ("components", "partition_components")


def trusted_keys(
    components: Sequence[Mapping[str, Any]], partition_components: int = 1
) -> list[MulticloudDbKey]:
    """Build keys from records that the service sent, without checking or copying `components`.

    Only `mapping` modules use it. They build a key for every event, and checking the components would double
    the cost.
    """
    drafts: list[Any] = list(map(object.__new__, repeat(_Draft, len(components))))
    draft: Any
    for draft, draft.components in zip(drafts, components, strict=True):
        draft.partition_components = partition_components
        draft.__class__ = MulticloudDbKey
    return drafts
