"""The provider `mongo`, for feeds that read MongoDB's change streams."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Final
from weakref import WeakSet

import pymongo
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from multiclouddb_api import CapabilitySet, ClientConfig, ErrorCategory, ResourceAddress
from multiclouddb_mongo.capabilities import CAPABILITIES
from multiclouddb_mongo.catalog import (
    check_names,
    check_provisioned,
    deployment_id,
    find,
    list_collections,
    resolve,
)
from multiclouddb_mongo.commands import Commands
from multiclouddb_mongo.config import MongoConfig
from multiclouddb_mongo.driver import Closer, hushed, is_told_at_once, place_to_ask, reach, retried
from multiclouddb_mongo.errors import PROVIDER_ID, classify
from multiclouddb_mongo.feed import MongoFeed
from multiclouddb_mongo.members import Majority, ServerClock
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.reader import MongoReader
from multiclouddb_mongo.snapshots import SegmentReader
from multiclouddb_mongo.source import ReaderContext, elected
from multiclouddb_spi import Deadline, Fault, FeedSpec, Provider, ProviderFault, ProviderPlugin
from multiclouddb_spi.connection import checked_native, warn_of_plaintext

_LOG: Final = logging.getLogger("multiclouddb.mongo")
_WIRE_OF_7_0: Final = 21
_WIRE_OF_6_0: Final = 17
_SPLITS_SINCE: Final = (6, 0, 9)
_CLOSE_SECONDS: Final = 0.4


class MongoProvider(Provider):
    """The provider for one MongoDB deployment."""

    provider_id: ClassVar[str] = PROVIDER_ID
    options_type: ClassVar[type[MongoOptions]] = MongoOptions

    def __init__(self, client: MongoClient[Any], database: str | None, *, ours: bool) -> None:
        self._client, self._database, self._ours = client, database, ours
        self._commands = Commands(client)
        self._readers: WeakSet[MongoReader | SegmentReader] = WeakSet()
        self._closer = Closer()
        self._features: tuple[bool, bool] | None = None
        self._deployment: str | None = None
        self._is_asked = False
        self._believed: set[object] = set()
        self._majority, self._clock = Majority(), ServerClock()
        self._refused: set[str] = set()

    def capabilities(self) -> CapabilitySet:
        return CAPABILITIES

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> MongoFeed:
        """Look up the collection, and check that it keeps the required images."""
        # A missing collection is an error at the start of a feed. A feed that continues from a token still
        # reads the last changes and the drop of a missing collection from the log.
        address = resolve(spec, self._database)
        check_names(spec, address)
        reach(self._client, deadline, opening=True)
        found = find(self._client, address)
        check_provisioned(spec, address, found)
        splits, sharded = self._server()
        source = ReaderContext(
            self._client,
            spec,
            address,
            self._closer,
            images=found.images,
            splits=splits,
            sharded=sharded,
            believed=self._believed,
            majority=self._majority,
            clock=self._clock,
            refused=self._refused,
        )
        return MongoFeed(source, found, self._readers, self._deployment_id(sharded=sharded))

    def collections(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """Return the collections of the given database, by default of the connection string's database."""
        reach(self._client, deadline, opening=True)
        return list_collections(self._client, database or self._database)

    def classify(self, error: Exception) -> Fault:
        return classify(error)

    def run_command(self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        return self._commands.run_command(database, command, options)

    def run_cursor_command(
        self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        return self._commands.run_cursor_command(database, command, options)

    def close(self) -> None:
        """Cancel all readers, and close all cursors and the library's client."""
        # The method does not wait for a server that does not answer.
        self._closer.end()
        readers = list(self._readers)
        for reader in readers:
            reader.halt()
        with hushed():
            self._close(readers)

    def _close(self, readers: list[MongoReader | SegmentReader]) -> None:
        for reader in readers:
            reader.cancel()
        # A reader that is opening a stream closes it, and needs the client to do this.
        self._closer.settle()
        with pymongo.timeout(_CLOSE_SECONDS):
            self._commands.close()
            if self._ours:
                self._client.close()

    def _server(self) -> tuple[bool, bool]:
        """Return whether the server splits large events, and whether it is a `mongos`."""
        if self._features is None:
            hello = retried(self._client, lambda: self._command("hello"))
            self._clock.told(hello)
            wire = hello.get("maxWireVersion", 0)
            splits = wire >= _WIRE_OF_7_0 or (wire == _WIRE_OF_6_0 and self._is_late_6_0())
            if is_told_at_once(self._client) and elected(hello) is not None:
                self._believed.add(elected(hello))
                self._majority.told(hello)
            sharded = hello.get("msg") == "isdbgrid"
            if not sharded:
                self._check_no_shard()
            self._features = (splits, sharded)
        return self._features

    def _check_no_shard(self) -> None:
        """Refuse a shard that is connected to in place of a `mongos`, if the user may know that it is one."""
        # It has a part of the rows, and also rows that it has given away, and its feed looks complete.
        try:
            state = retried(self._client, lambda: self._command("shardingState"))
        except OperationFailure as error:
            if classify(error).retryable:
                raise
            return
        if state.get("enabled") is True:
            raise ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                f"connection.url: names the shard {state.get('shardName')!r} of a sharded cluster, which has "
                "only a part of the rows and of the changes; name a mongos of the cluster",
            )

    def _deployment_id(self, *, sharded: bool) -> str | None:
        """Return the id of the replica set or the cluster; None if the user may not know it."""
        if not self._is_asked:
            try:
                self._deployment = retried(self._client, lambda: deployment_id(self._client, sharded=sharded))
            except OperationFailure as error:
                if classify(error).retryable:
                    raise
            self._is_asked = True
        return self._deployment

    def _is_late_6_0(self) -> bool:
        try:
            version = retried(self._client, lambda: self._command("buildinfo"))["versionArray"]
        except OperationFailure as error:
            if classify(error).retryable:
                raise
            return False  # the Stable API does not include this command
        return bool(tuple(version[:3]) >= _SPLITS_SINCE)

    def _command(self, name: str) -> dict[str, Any]:
        return self._client.admin.command(name, read_preference=place_to_ask(self._client))


class MongoPlugin(ProviderPlugin):
    """The plugin to which the provider's entry point refers."""

    provider_id: ClassVar[str] = PROVIDER_ID
    declared = CAPABILITIES
    config_type = MongoConfig

    def connect(self, config: ClientConfig, native_client: object | None) -> MongoProvider:
        """Make PyMongo's client, without sending anything."""
        if native_client is None:
            checked = MongoConfig.from_client(config)
            try:
                client = checked.client(config.max_concurrency)
            except PyMongoError as error:
                raise ProviderFault(classify(error)) from None
            if (hosts := checked.readable_hosts) is not None:
                warn_of_plaintext(_LOG, f"mongo:{hosts}", "add tls=true to the URL, or use mongodb+srv://")
            return MongoProvider(client, checked.database, ours=True)
        own: MongoClient[Any] = checked_native(native_client, MongoClient, "pass a pymongo.MongoClient")
        database = MongoConfig.from_client(config).database if "url" in config.connection else None
        return MongoProvider(own, database, ours=False)


PLUGIN: Final = MongoPlugin()
