"""The life of a collection as a script: what happens to it, and when its consumer reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import attrs

from multiclouddb_api import MulticloudDbKey

__all__ = [
    "Act",
    "Author",
    "Change",
    "Read",
    "ReadUntilIdle",
    "ScriptedWorld",
    "Step",
    "plain_key",
    "scripted_life",
]

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)


def plain_key(key: Hashable) -> Hashable:
    """A key's only component as it is; other keys as they are.

    So a life may call a key `"a"` that the service calls `{"id": "a"}` or `{"_id": "a"}`.
    """
    if isinstance(key, MulticloudDbKey) and len(key.components) == 1:
        (value,) = key.components.values()
        return value if isinstance(value, Hashable) else key
    return key


@attrs.frozen
class Change:
    """One change that was written: what has to be delivered.

    Attributes:
        key: The document's key: a `MulticloudDbKey`, or the value of its only component.
        marker: What tells this version of the document from every other of its key: a value that
            stands in the document. None for a delete.
    """

    key: Hashable = attrs.field(converter=plain_key)
    marker: Hashable | None


@attrs.frozen
class Act(Generic[W_contra]):
    """Something happens to the world.

    Attributes:
        name: What, for a report.
        run: Does it, and returns the changes that it wrote, in the order of the service.
        forgets: True when it takes changes out of retention: the consumer is given the time to
            read up to the end and to store that before.
    """

    name: str
    run: Callable[[W_contra], Iterable[Change] | None]
    forgets: bool = False


@attrs.frozen
class Read:
    """The consumer reads.

    Attributes:
        pages: How many pages.
    """

    pages: int = 1


@attrs.frozen
class ReadUntilIdle:
    """The consumer reads until the feed says that it is idle."""


Step: TypeAlias = Act[W] | Read | ReadUntilIdle
"""One step of a life."""


class ScriptedWorld(Protocol):
    """What `scripted_life` needs of a collection; done natively, never through the code under test."""

    def write(self, writes: Sequence[tuple[str, dict[str, Any] | None]]) -> None:
        """Write documents, or delete with None; in one transaction where there are transactions."""
        ...

    def split(self) -> None:
        """Split a partition, if partitions can split."""
        ...

    def merge(self) -> None:
        """Merge two partitions, if partitions can merge."""
        ...

    def trim(self) -> None:
        """Take everything written so far out of retention, if that can be done."""
        ...


def scripted_life(
    seed: int = 0, rounds: int = 6, keys: int = 6, field: str = "n"
) -> list[Step[ScriptedWorld]]:
    """A life with single writes, transactions, deletes, splits, merges and a trim, read now and then.

    Args:
        seed: Which of the possible lives.
        rounds: Its length: each round writes, reshapes and reads. From 3 on it has all of a split, a
            merge and a trim.
        keys: How many documents.
        field: Which field of a document holds the marker.
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
    """Writes the changes of a life, and keeps in mind which documents are there.

    Args:
        seed: Which of the possible changes.
        keys: How many documents.
        field: Which field of a document holds the marker.
    """

    def __init__(self, seed: int = 0, keys: int = 6, field: str = "n") -> None:
        self._dice = random.Random(f"life {seed}")
        self._keys = [f"k{number}" for number in range(keys)]
        self._present: set[str] = set()
        self._field = field
        self._marker = 0

    def write(self, count: int) -> Act[ScriptedWorld]:
        """Change that many documents, different ones, in one transaction."""
        changes = [self._change(key) for key in self._dice.sample(self._keys, min(count, len(self._keys)))]
        name = "write " + ", ".join(f"{change.key}={change.marker}" for change in changes)
        writes: list[tuple[str, dict[str, Any] | None]] = [
            (str(change.key), None if change.marker is None else {self._field: change.marker})
            for change in changes
        ]

        def run(world: ScriptedWorld) -> list[Change]:
            world.write(writes)
            return changes

        return Act(name, run)

    def _change(self, key: str) -> Change:
        if key in self._present and self._dice.random() < 0.3:
            self._present.discard(key)
            return Change(key, None)
        self._present.add(key)
        self._marker += 1
        return Change(key, self._marker)
