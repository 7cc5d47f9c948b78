"""Implements commands that the real service does not offer.

A test can call the commands in the emulator's process, or through the control API.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from multiclouddb_cosmos_emulator.account import Account
from multiclouddb_cosmos_emulator.auth import Guard
from multiclouddb_cosmos_emulator.container import Container
from multiclouddb_cosmos_emulator.faults import Action, Drop, Fail, Fault, Faults, Lag, Slow
from multiclouddb_cosmos_emulator.journal import Journal
from multiclouddb_cosmos_emulator.keys import KeyDefinition

__all__ = ["Commands"]


class Commands:
    """The commands. Each method is also a command of the control API with the same name.

    Args:
        account: The state of the emulator.
        lock: The lock that a thread must hold while it reads or changes the state.
        faults: The faults that were requested.
        journal: The received requests.
        guard: The object that checks the authorization.
    """

    def __init__(
        self, account: Account, lock: threading.RLock, faults: Faults, journal: Journal, guard: Guard
    ) -> None:
        self._account, self._lock, self._guard = account, lock, guard
        self.faults, self.journal = faults, journal

    def by_name(self) -> Mapping[str, Callable[..., Any]]:
        """Return the commands of the control API, by name."""
        return {
            "advance": self.advance,
            "all_versions": self.all_versions,
            "clear_faults": self.faults.clear,
            "damage": self.damage,
            "expire": self.expire,
            "expire_tokens": self.expire_tokens,
            "fault": self._fault,
            "lose": self.lose,
            "merge": self.merge,
            "partitions": self.partitions,
            "requests": self._requests,
            "split": self.split,
            "trim": self.trim,
        }

    # -- Partitions

    def partitions(self, database: str, container: str) -> list[dict[str, Any]]:
        """Describe live partitions: `id`, `low`, `high`, `parents`, `lsn`, `trimmed`, number of `items`."""
        with self._lock:
            return [
                {
                    "id": each.range_id,
                    "low": each.low,
                    "high": each.high,
                    "parents": list(each.parents),
                    "lsn": each.lsn,
                    "trimmed": each.trimmed,
                    "items": len(each.items),
                }
                for each in self._container(database, container).partitions
            ]

    def split(
        self,
        database: str,
        container: str,
        partition: str,
        boundary: str | None = None,
        completing: int = 0,
    ) -> tuple[str, str]:
        """Split a partition, and return the ids of its children.

        Args:
            database: The database's id.
            container: The container's id.
            partition: The partition's id.
            boundary: The effective partition key at which the second child begins; None means the middle of
                the partition.
            completing: The number of requests to each child that get the answer 410/1007 before
                requests succeed.
        """
        with self._lock:
            return self._container(database, container).split(partition, boundary, completing)

    def merge(self, database: str, container: str, first: str, second: str) -> str:
        """Merge two adjacent partitions, and return the id of the child."""
        with self._lock:
            return self._container(database, container).merge(first, second)

    def partition_of(self, database: str, container: str, *key: Any) -> str:
        """Return the id of the partition that contains a partition key."""
        with self._lock:
            found = self._container(database, container)
            return found.partition_of(found.definition.of_values(key).epk).range_id

    @staticmethod
    def effective_key(*key: Any, kind: str = "Hash", version: int = 2) -> str:
        """Return the effective partition key of a partition key's components."""
        return KeyDefinition(tuple(("k",) for _ in key), kind, version).of_values(key).epk

    # -- Earlier states

    def save(self) -> Any:
        """Return the state of all databases for `restore`."""
        with self._lock:
            return self._copied((self._account.databases, self._account.offers))

    def restore(self, saved: Any) -> None:
        """Go back to a state that `save` has returned; this may be done more than once."""
        with self._lock:
            self._account.databases, self._account.offers = self._copied(saved)

    def _copied(self, state: Any) -> Any:
        return deepcopy(state, {id(self._account.clock): self._account.clock})

    # -- Time and retention

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Items may expire, and changes may become older than the retention."""
        with self._lock:
            self._account.clock.advance(seconds)

    def expire(self, database: str, container: str) -> int:
        """Delete the items whose time to live has passed, and return their number.

        Every read also deletes the expired items.
        """
        with self._lock:
            return self._account.database(database).containers[container].expire()

    def trim(self, database: str, container: str, partition: str | None = None) -> None:
        """Expire all changes made so far in the feed with all versions and deletes.

        Args:
            database: The database's id.
            container: The container's id.
            partition: The partition's id; None means all partitions.
        """
        with self._lock:
            for each in self._container(database, container).partitions:
                if partition in (None, each.range_id):
                    each.trim_to(each.lsn)

    def lose(self, database: str, container: str, partition: str, transactions: int) -> None:
        """Undo the last transactions of a partition, like an unplanned failover that loses them.

        The partition gives the LSNs of these transactions to the next transactions.
        """
        with self._lock:
            self._container(database, container).lose(partition, transactions)

    def damage(self, database: str, container: str, item: str) -> None:
        """Give the last change of an item a type that no client knows, in the feed of all versions.

        Args:
            database: The database's id.
            container: The container's id.
            item: The item's id.
        """
        with self._lock:
            found = [
                change
                for each in self._container(database, container).partitions
                for change in each.changes
                if change.item_id == item
            ]
            if not found:
                raise ValueError(f"there is no change of an item {item!r}")
            found[-1].kind = "damaged"

    def all_versions(self, enabled: bool) -> None:
        """Enable or disable the change feed with all versions and deletes."""
        with self._lock:
            self._account.all_versions = enabled

    def expire_tokens(self) -> int:
        """Refuse every bearer token that was used until now; return the number of expired tokens."""
        with self._lock:
            return self._guard.expire_tokens(self._account.clock.now())

    # -- For the control API

    def _fault(
        self,
        action: str,
        operation: str | None = None,
        container: str | None = None,
        partition: str | None = None,
        times: int | None = 1,
        after: int = 0,
        **details: Any,
    ) -> None:
        actions: dict[str, Callable[..., Action]] = {
            "fail": Fail,
            "drop": Drop,
            "slow": Slow,
            "lag": Lag,
        }
        if action not in actions:
            raise ValueError(f"there is no action {action!r}; the actions are {', '.join(actions)}")
        made: Fault = self.faults.add(
            actions[action](**details),
            operation,
            container=container,
            partition=partition,
            times=times,
            after=after,
        )
        del made

    def _requests(self, operation: str | None = None) -> list[dict[str, Any]]:
        return [entry.as_dict() for entry in self.journal.entries(operation)]

    def _container(self, database: str, container: str) -> Container:
        return self._account.container(database, container)
