"""The harness for the embedded store. A run costs nothing, and its stores end with its temporary folder."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Final

from multiclouddb_api import ClientConfig, ResourceAddress
from multiclouddb_certify.certification import LOCAL, Certification, Permission, Run, RunPlace
from multiclouddb_conformance.harness import CollectionKind, Harness, Write
from multiclouddb_embedded import Delete, EmbeddedStore, Put
from multiclouddb_embedded.provider import CAPABILITIES, PLUGIN

__all__ = ["CERTIFICATION", "EmbeddedCertification", "EmbeddedHarness"]

IMAGES: Final[Mapping[CollectionKind, Any]] = {
    CollectionKind.PLAIN: "new",
    CollectionKind.KEYS_ONLY: "keys",
    CollectionKind.OLD_IMAGES: "new_and_old",
}


class EmbeddedHarness(Harness):
    """A harness whose stores are in the folder of the test."""

    profile: ClassVar[str | None] = None
    capabilities = CAPABILITIES
    plugin = PLUGIN
    spellings = (1, 1.0, Decimal(1), True, "1")
    can_expire = can_other_options = can_secrets = can_notices = can_named_keys = False

    def open(self) -> None:
        """Make the store."""
        self.store = EmbeddedStore(self.folder / "store.db", durable=False)

    def close(self) -> None:
        """Close the store; pytest removes its folder."""
        self.store.close()

    def config(self) -> ClientConfig:
        """Return the path, and the profile if there is one."""
        connection = {"path": self.store.path, "profile": self.profile}
        return ClientConfig("embedded", {name: value for name, value in connection.items() if value})

    def create(
        self, name: str, kind: CollectionKind, partitions: int, *, recreate: bool = False
    ) -> ResourceAddress:
        """Create a collection."""
        return self.store.create_collection(name, partitions, images=IMAGES[kind], recreate=recreate)

    def write(self, address: ResourceAddress, writes: Sequence[Write]) -> None:
        """Write in one transaction."""
        operations = [Delete(w.key) if w.document is None else Put(w.key, w.document) for w in writes]
        self.store.batch(str(address.collection), operations)

    def split(self, address: ResourceAddress, partition_id: str) -> None:
        """Split a partition."""
        self.store.split(str(address.collection), partition_id)

    def merge(self, address: ResourceAddress, a: str, b: str) -> None:
        """Merge two partitions."""
        self.store.merge(str(address.collection), a, b)

    def trim(self, address: ResourceAddress) -> None:
        """Remove every change."""
        self.store.trim(str(address.collection), max_count=0)

    def poison(self, address: ResourceAddress, key: Any) -> None:
        """Break the last record in the file."""
        self.store.put(str(address.collection), key, {"n": "poison"})
        with sqlite3.connect(self.store.path) as connection:
            connection.execute("UPDATE log SET doc = '{broken' WHERE seq = (SELECT max(seq) FROM log)")
        connection.close()

    def recreate(self, address: ResourceAddress) -> None:
        """Create the collection again."""
        self.create(str(address.collection), CollectionKind.PLAIN, self.partitions, recreate=True)


class EmbeddedCertification(Certification):
    """The embedded store, which needs no account and leaves nothing."""

    provider_id = "embedded"

    def place(self, url: str) -> RunPlace:
        """Return this machine."""
        del url
        return RunPlace(LOCAL, None, "the embedded store")

    def creates(self, url: str, run: Run) -> Sequence[str]:
        """Return the files."""
        del url
        return (f"stores in a temporary folder of the run {run.name}; the store of the URL is not opened",)

    def permissions(self, url: str, run: Run) -> Sequence[Permission]:
        """Return nothing."""
        del url, run
        return ()

    def harness(self, url: str, run: Run) -> type[Harness]:
        """Return the harness."""
        del url, run
        return EmbeddedHarness

    def found(self, url: str) -> Iterable[str]:
        """Return nothing: the folder of a run is removed with its process."""
        del url
        return ()

    def remove(self, url: str, name: str) -> None:
        """Do nothing."""


CERTIFICATION: Final = EmbeddedCertification()
