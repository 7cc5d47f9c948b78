"""Holds the state of the emulator: an account with its databases, containers and offers."""

from __future__ import annotations

from typing import Any, Final

import attrs

from multiclouddb_cosmos_emulator.clock import Clock
from multiclouddb_cosmos_emulator.container import Container
from multiclouddb_cosmos_emulator.errors import bad_request, conflict, not_found
from multiclouddb_cosmos_emulator.ids import database_rid, new_etag
from multiclouddb_cosmos_emulator.keys import KeyDefinition
from multiclouddb_cosmos_emulator.offers import DEFAULT_THROUGHPUT, Offer, Throughput

__all__ = ["Account", "Database"]

_WEEK: Final = 7 * 24 * 3600.0
_LONGEST_NAME: Final = 255


class Database:
    """A database with its containers.

    Args:
        name: Its id.
        ts: The time at which the database was created.
    """

    def __init__(self, name: str, ts: int) -> None:
        self.rid = database_rid()
        self.link = f"dbs/{self.rid}/"
        self.containers: dict[str, Container] = {}
        self.document: dict[str, Any] = {
            "id": name,
            "_rid": self.rid,
            "_self": self.link,
            "_etag": new_etag(),
            "_colls": "colls/",
            "_users": "users/",
            "_ts": ts,
        }


@attrs.define(eq=False)
class Account:
    """An account.

    Attributes:
        clock: The server's clock.
        all_versions: True if the feed with all versions and deletes is enabled.
        consistency: The level of the account, from `Strong` to `Eventual`.
        retention_seconds: How long the feed keeps changes, unless a container specifies a different time.
        databases: The databases, by name.
        offers: Maps the `_self` of each resource to its offer.
    """

    clock: Clock
    all_versions: bool = True
    consistency: str = "Session"
    retention_seconds: float = _WEEK
    databases: dict[str, Database] = attrs.Factory(dict)
    offers: dict[str, Offer] = attrs.Factory(dict)

    def database(self, name: str) -> Database:
        """Return a database, by name or by resource id."""
        if name in self.databases:
            return self.databases[name]
        for database in self.databases.values():
            if database.rid == name:
                return database
        raise not_found(substatus=1003)

    def container(self, database: str, name: str) -> Container:
        """Return a container, by name or by resource id. The container's expired items are deleted first."""
        containers = self.database(database).containers
        found = containers.get(name)
        if found is None:
            found = next((each for each in containers.values() if each.rid == name), None)
        if found is None:
            raise not_found("Owner resource does not exist", substatus=1003)
        found.expire()
        return found

    def create_database(self, document: Any, throughput: Throughput | None) -> Database:
        """Create a database."""
        name = _name(document)
        if name in self.databases:
            raise conflict()
        database = self.databases[name] = Database(name, int(self.clock.seconds()))
        if throughput is not None:
            self._offer(database.link, database.rid, throughput)
        return database

    def delete_database(self, name: str) -> None:
        """Delete a database with all its containers."""
        database = self.database(name)
        for container in list(database.containers):
            self.delete_container(name, container)
        self.offers.pop(database.link, None)
        del self.databases[database.document["id"]]

    def create_container(self, database: str, document: Any, throughput: Throughput | None) -> Container:
        """Create a container.

        A container without its own throughput shares the throughput of the database. If the
        database has no throughput, the container gets 400 request units per second.
        """
        home, name = self.database(database), _name(document)
        KeyDefinition.parsed(document.get("partitionKey") or {})
        if name in home.containers:
            raise conflict()
        shared = home.link in self.offers
        if throughput is None and not shared:
            throughput = Throughput(DEFAULT_THROUGHPUT)
        # A container that shares the throughput of a database has one partition.
        parts = 1 if throughput is None else throughput.new_partitions
        container = home.containers[name] = Container(home.rid, document, parts, self.clock)
        if throughput is not None:
            self._offer(container.link, container.rid, throughput)
        return container

    def delete_container(self, database: str, name: str) -> None:
        """Delete a container."""
        home, container = self.database(database), self.container(database, name)
        self.offers.pop(container.link, None)
        del home.containers[container.properties["id"]]

    def offer(self, rid: str) -> Offer:
        """Return an offer."""
        for offer in self.offers.values():
            if offer.rid.lower() == rid.lower():
                return offer
        raise not_found()

    def set_throughput(self, offer: Offer, throughput: Throughput) -> None:
        """Provision a different throughput.

        More throughput splits partitions, but less throughput never merges partitions.
        """
        offer.set(throughput)
        for database in self.databases.values():
            for container in database.containers.values():
                if self.offers.get(container.link) is offer:
                    container.grow(throughput.partitions)

    def retention(self, container: Container) -> float:
        """Return the number of seconds for which a container keeps all versions."""
        policy = container.properties.get("changeFeedPolicy") or {}
        minutes = policy.get("retentionDuration", 0)
        return minutes * 60.0 if minutes else self.retention_seconds

    def _offer(self, link: str, rid: str, throughput: Throughput) -> None:
        self.offers[link] = Offer(link, rid, throughput)


def _name(document: Any) -> str:
    name = document.get("id") if isinstance(document, dict) else None
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or any(s in name for s in "/\\?#"):
        raise bad_request(
            "The input name is invalid. "
            "Ensure to provide a unique non-empty string less than '255' characters. "
            "It must not contain / \\ ? #."
        )
    return name
