"""Defines the script of a run: the changes of a collection, and when its consumer reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import attrs

from multiclouddb_api import MulticloudDbClient, MulticloudDbKey, ResourceAddress

__all__ = [
    "Act",
    "Author",
    "Read",
    "ReadUntilIdle",
    "ScriptedWorld",
    "Step",
    "WrittenChange",
    "plain_key",
    "public_lineage",
    "scripted_life",
]

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)


def plain_key(key: Hashable) -> Hashable:
    """Return the value of a key's only component; other keys are returned unchanged.

    A script can therefore write `"a"` for a key that is `{"id": "a"}` or `{"_id": "a"}` in the
    service.
    """
    if isinstance(key, MulticloudDbKey) and len(key.components) == 1:
        (value,) = key.components.values()
        return value if isinstance(value, Hashable) else key
    return key


@attrs.frozen
class WrittenChange:
    """One written change, which must be delivered.

    Attributes:
        key: The key of the document: a `MulticloudDbKey`, or the value of the key's only component.
        marker: A value in the document that identifies this version among all versions of the key. None for
            a delete.
    """

    key: Hashable = attrs.field(converter=plain_key)
    marker: Hashable | None


@attrs.frozen
class Act(Generic[W_contra]):
    """One action on the database.

    Attributes:
        name: The name of the action in the report.
        run: A function that performs the action and returns the changes that it wrote, in the service's
            order.
        forgets: True if the action removes changes, as retention does. Before such an action, the consumer
            reads to the end and stores its token.
    """

    name: str
    run: Callable[[W_contra], Iterable[WrittenChange] | None]
    forgets: bool = False


@attrs.frozen
class Read:
    """The consumer reads.

    Attributes:
        pages: The number of pages that the consumer reads.
    """

    pages: int = 1


@attrs.frozen
class ReadUntilIdle:
    """The consumer reads until the feed reports that it is idle."""


Step: TypeAlias = Act[W] | Read | ReadUntilIdle
"""One step in the script."""


class ScriptedWorld(Protocol):
    """The actions that `scripted_life` needs.

    Each action works directly on the service, not through the tested code.
    """

    def write(self, writes: Sequence[tuple[str, dict[str, Any] | None]]) -> None:
        """Write documents (None deletes a document), in one transaction if the service has transactions."""
        ...

    def split(self) -> None:
        """Split a partition, if partitions can split."""
        ...

    def merge(self) -> None:
        """Merge two partitions, if partitions can merge."""
        ...

    def trim(self) -> None:
        """Remove all changes made so far, if the service allows this."""
        ...


def scripted_life(
    seed: int = 0, rounds: int = 6, keys: int = 6, field: str = "n"
) -> list[Step[ScriptedWorld]]:
    """Make a script of single writes, transactions, deletes, splits, merges, a trim and reads.

    Args:
        seed: A number that selects one of the possible scripts.
        rounds: The number of rounds in the script. Each round writes, changes partitions and reads.
            With 3 or more rounds, the script contains at least one split, one merge and one trim.
        keys: The number of different documents.
        field: The field of the document that contains the marker.
    """
    author = Author(seed, keys, field)
    life: list[Step[ScriptedWorld]] = []
    for number in range(rounds):
        life += [author.write(1), author.write(1), author.write(3)]
        life.append(Act("split", lambda world: world.split()))
        life += [author.write(2), Read(1 + number % 2), author.write(1)]
        if number % 2:
            life += [Act("merge", lambda world: world.merge()), author.write(2)]
        if number == rounds // 2:
            life.append(Act("trim", lambda world: world.trim(), forgets=True))
        if number % 3 == 2:
            life.append(ReadUntilIdle())
    return life


class Author:
    """Writes the changes of a script and records which documents currently exist.

    Args:
        seed: A number that selects one of the possible series of changes.
        keys: The number of different documents.
        field: The field of the document that contains the marker.
    """

    def __init__(self, seed: int = 0, keys: int = 6, field: str = "n") -> None:
        self._dice = random.Random(f"life {seed}")
        self._keys = [f"k{number}" for number in range(keys)]
        self._present: set[str] = set()
        self._field = field
        self._marker = 0

    def write(self, count: int) -> Act[ScriptedWorld]:
        """Change the given number of different documents in one transaction."""
        changes = [self._change(key) for key in self._dice.sample(self._keys, min(count, len(self._keys)))]
        name = "write " + ", ".join(f"{change.key}={change.marker}" for change in changes)
        writes: list[tuple[str, dict[str, Any] | None]] = [
            (str(change.key), None if change.marker is None else {self._field: change.marker})
            for change in changes
        ]

        def run(world: ScriptedWorld) -> list[WrittenChange]:
            world.write(writes)
            return changes

        return Act(name, run)

    def _change(self, key: str) -> WrittenChange:
        if key in self._present and self._dice.random() < 0.3:
            self._present.discard(key)
            return WrittenChange(key, None)
        self._present.add(key)
        self._marker += 1
        return WrittenChange(key, self._marker)


def public_lineage(
    client: MulticloudDbClient, address: ResourceAddress, parents: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the parents of each partition; the ids are those that events contain."""
    front = client.list_physical_partitions(address)[0].rpartition(":")[0]
    return {
        f"{front}:{name}": tuple(f"{front}:{parent}" for parent in above) for name, above in parents.items()
    }
