"""The client connects to a database, reads pages of changes and lists partitions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from multiclouddb_api.backend import Backend
from multiclouddb_api.capability import CapabilitySet
from multiclouddb_api.config import ClientConfig, outcome
from multiclouddb_api.errors import (
    ErrorCategory,
    ErrorDetail,
    MulticloudDbError,
    check_type,
    invalid_request,
    type_name,
)
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.lookup import LookupAnswer
from multiclouddb_api.observer import Observer
from multiclouddb_api.page import ChangeFeedPage
from multiclouddb_api.process import Home
from multiclouddb_api.registry import load_plugin
from multiclouddb_api.request import (
    ChangeFeedRequest,
    OperationOptions,
    ProviderOptions,
    ResourceAddress,
    to_address,
)
from multiclouddb_api.validators import to_dict

if TYPE_CHECKING:
    from typing import Unpack

    from multiclouddb_api.iterator import ChangeFeedIterator, IteratorSettings
    from multiclouddb_api.plan import PartitionList, PartitionPlan
    from multiclouddb_api.token_report import TokenReport

_DEFAULTS = OperationOptions()


def connect(
    source: str | os.PathLike[str] | ClientConfig,
    *,
    native_client: object | None = None,
    observer: Observer | None = None,
) -> MulticloudDbClient:
    """Connect to a database and return the client.

    Args:
        source: A URL (`"embedded:///data/store.db"`), the path of a TOML file
            (`ClientConfig.from_toml`), or a configuration.
        native_client: A vendor client that the application has already made. It is never reconfigured or
            closed, and each call is sent only once, because such a client has retries of its own.
        observer: Its methods are called while the client works, for metrics.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for an unknown provider or option, for a value of the wrong type,
            and for an extra that is not installed; the message then has the command to install it.

    Examples:
        >>> with connect("embedded:///tmp/store.db") as client:
        ...     client.capabilities().is_supported(Capability.CHANGE_FEED)
        True
    """
    # If this raises an error, no local variable contains the content of a URL.
    source = outcome(to_config, source)
    if isinstance(source, MulticloudDbError):
        raise source
    assert isinstance(source, ClientConfig)
    return MulticloudDbClient(source, native_client=native_client, observer=observer)


def to_config(source: str | os.PathLike[str] | ClientConfig) -> ClientConfig:
    """Return the configuration of a source; see `connect`.

    Args:
        source: A URL, the path of a TOML file, or a configuration.
    """
    if isinstance(source, ClientConfig):
        return source
    if isinstance(source, str) and "://" in source:
        return ClientConfig.from_url(source)
    return ClientConfig.from_toml(_toml_file(source))


def _toml_file(source: object) -> Path:
    if isinstance(source, str | os.PathLike) and Path(source).suffix == ".toml":
        return Path(source)
    raise invalid_request(
        "source",
        f"is neither a URL, nor a .toml file, nor a ClientConfig: {type_name(source)}",
        'write connect("embedded:///path/store.db")',
    )


def _limits(options: OperationOptions | None) -> OperationOptions:
    if options is None:
        return _DEFAULTS
    check_type("options", options, OperationOptions, NoneType)
    return options


_MOST_KEYS: Final = 1000


def _keys(keys: Iterable[MulticloudDbKey]) -> tuple[MulticloudDbKey, ...]:
    if isinstance(keys, MulticloudDbKey | str | Mapping) or not isinstance(keys, Iterable):
        raise invalid_request(
            "keys", f"is of type {type_name(keys)}", "pass a list of keys, for example [event.key]"
        )
    found = tuple(islice(keys, _MOST_KEYS + 1))
    for key in found:
        check_type("keys", key, MulticloudDbKey)
    if len(found) > _MOST_KEYS:
        raise invalid_request("keys", f"has more than {_MOST_KEYS} keys", "look up fewer keys in each call")
    return found


def _check_command(database: str, command: Mapping[str, Any]) -> None:
    check_type("database", database, str)
    to_dict("command", command)


class MulticloudDbClient:
    """Reads the changes of one database.

    Use it as a context manager; any number of threads may share it, but no other process: after a fork, its
    calls in the child process raise `INVALID_REQUEST`, and `close` does nothing there. It cannot be pickled
    either. Connect in the other process, for example with the `config` of this client.

    Args:
        config: The provider, and how to reach the database.
        native_client: A vendor client that the application has already made; see `connect`.
        observer: Its methods are called while the client works, for metrics.
    """

    def __init__(
        self, config: ClientConfig, *, native_client: object | None = None, observer: Observer | None = None
    ) -> None:
        check_type("config", config, ClientConfig)
        check_type("observer", observer, Observer, NoneType)
        self._config = config
        self._observer = observer
        self._closed = False
        self._lock = threading.Lock()
        self._home = Home(self, "MulticloudDbClient", "call connect(client.config) in this process")
        self._backend: Backend = load_plugin(config.provider).open(config, native_client, observer)

    @property
    def config(self) -> ClientConfig:
        """The configuration of this client."""
        return self._config

    @property
    def observer(self) -> Observer | None:
        """The observer of this client, or None."""
        return self._observer

    def read_changes(
        self, request: ChangeFeedRequest, options: OperationOptions | None = None
    ) -> ChangeFeedPage:
        """Read one page of changes.

        Args:
            request: The request.
            options: Time limits; by default, a call takes at most 30 seconds and does not wait for events.

        Returns:
            A page, which may be empty. Continue with `request.after(page)`.

        Raises:
            MulticloudDbError: Its category says what to do (`ErrorCategory`). The position in the request
                stays valid, so the same request can be made again.

        Portability:
            A request that the database cannot serve raises `UNSUPPORTED_CAPABILITY`, and the message has an
            alternative; `capabilities` shows beforehand what works. `NewItemStateMode.REQUIRE` needs the
            all-versions-and-deletes mode on Cosmos DB, a stream with images on DynamoDB, and a change stream
            of full rows on Spanner. See warnings 1, 4 and 5 in docs/configuration.md.
        """
        check_type("request", request, ChangeFeedRequest)
        return self._live("read_changes").read_changes(request, _limits(options))

    def list_physical_partitions(
        self, address: ResourceAddress | str, options: OperationOptions | None = None
    ) -> PartitionList:
        """Return the ids of the partitions that currently accept writes; pass an id to `PhysicalPartition`.

        Args:
            address: The address of the collection, table or container, or its text.
            options: Time limits; 30 seconds by default.

        Portability:
            Partition ids are valid only for the same provider and resource. MongoDB always has exactly one
            partition. See warnings 7 and 11 in docs/configuration.md.
        """
        address = to_address(address)
        check_type("address", address, ResourceAddress)
        backend = self._live("list_physical_partitions")
        from multiclouddb_api.plan import PartitionList

        return PartitionList(backend.list_physical_partitions(address, _limits(options)))

    def lookup(
        self,
        address: ResourceAddress | str,
        keys: Iterable[MulticloudDbKey],
        options: OperationOptions | None = None,
        *,
        provider_options: ProviderOptions | None = None,
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        """Read the current rows with these keys.

        Each row is an event like that of a scan (`Snapshot`), with `type=CREATE` and `backfilled=True`. It
        includes every write that was acknowledged before this call, and perhaps later ones. Its `event_id` is
        the same whenever this key is looked up.

        Args:
            address: The address of the collection, table or container, or its text.
            keys: At most 1,000 keys, in the form in which events have them. A key that occurs twice is read
                once. All rows of the answer are in memory at once: give fewer keys if documents are large.
            options: Time limits; 30 seconds by default.
            provider_options: The provider's options, if it has any.

        Returns:
            Maps each key to its row, or to None if the service answered that no row has exactly this key.
            `NotKnown` is neither: the service could not be asked for this key, or it is not clear to which
            key its answer belongs. Do not take it for None.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if a key has other components than the keys of the
                collection, or if there are too many keys. `AUTHORIZATION_FAILED` if the identity may not read
                rows; the note of `Capability.LOOKUP` has the permission. A retryable error if the time limit
                passes before the service has answered for all keys.

        Portability:
            On Cosmos DB, an answer may lack the newest writes, unless the account has strong or bounded
            staleness consistency. There, `order_key` is that of the row's last change (`ScanFloor.ROW`). On
            the other databases it is empty; to merge such a row, give it the floor of a scan that began
            before the look-up. See warning 23 in docs/configuration.md.
        """
        address = to_address(address)
        check_type("address", address, ResourceAddress)
        check_type("provider_options", provider_options, ProviderOptions, NoneType)
        backend = self._live("lookup")
        return backend.lookup(address, _keys(keys), _limits(options), provider_options)

    def collections(
        self, database: str | None = None, options: OperationOptions | None = None
    ) -> tuple[ResourceAddress, ...]:
        """Return the sorted addresses of the collections, tables or containers that this user may see.

        Those without an enabled change feed are among them.

        Args:
            database: The database to list; None for all of them.
            options: Time limits; 30 seconds by default.

        Raises:
            MulticloudDbError: `NOT_FOUND` if there is no such database.
        """
        check_type("database", database, str, NoneType)
        found = self._live("collections").collections(database, _limits(options))
        return tuple(sorted(found, key=str))

    def inspect(
        self,
        token: str,
        options: OperationOptions | None = None,
        *,
        key: MulticloudDbKey | None = None,
        provider_options: ProviderOptions | None = None,
    ) -> TokenReport:
        """Show what a token contains, and check whether the service can still resume it.

        The check reads at most one event, without its document, and leaves the token as it is. The command
        `multiclouddb token check` looks further: it asks each partition separately, and searches for
        partitions that the token does not cover.

        Args:
            token: The token.
            options: Time limits; 30 seconds by default.
            key: The partition key, needed for a token of `LogicalPartition`, because the token has only its
                digest.
            provider_options: The provider's options with which the token was made, if any.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the token is damaged or of another provider. A retryable
                error if the service does not answer.
        """
        check_type("token", token, str)
        check_type("key", key, MulticloudDbKey, NoneType)
        check_type("provider_options", provider_options, ProviderOptions, NoneType)
        return self._live("inspect").inspect(token.rstrip("\r\n"), _limits(options), key, provider_options)

    def plan_partitions(
        self,
        request: ChangeFeedRequest,
        options: OperationOptions | None = None,
        *,
        with_descendants: bool = False,
    ) -> PartitionPlan:
        """Resolve the start position once, and return one token per partition.

        An application spreads a feed over several processes with these tokens. Each process reads its own
        partition from that partition's token. With `with_descendants`, it reads
        `PhysicalPartition(partition_id, with_descendants=True)`, which goes on with all partitions that
        descend from this one. Without `with_descendants`, it reads `PhysicalPartition(partition_id)`, and the
        application also starts a reader for each child that a page lists. After a merge, each parent lists
        the common child: read it once, and only after all of its parents.

        A snapshot is spread in the same way. With `Snapshot(SnapshotOrder.INTERLEAVED)` there is also a token
        for each segment of the scan. A segment is read like a partition, has `SnapshotStarted` and
        `BackfillDone` notices of its own, and then ends. With `Snapshot(changes=False)` there are only
        segments.

        Args:
            request: The start position and the modes; its scope must be the entire collection.
            options: Time limits; 30 seconds by default.
            with_descendants: True for tokens of `PhysicalPartition(…, with_descendants=True)`.

        Returns:
            A tuple of `PlannedPartition`: an id, a token, and whether it is a segment of the scan. A
            partition whose parent has not been read to its end is left out, because the reader of the parent
            continues with it. An ended partition is included as long as the service may list more of its
            children; read it too. The plan is empty if the feed has ended.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` for another scope; for a `Snapshot()` with changes whose
                order is not `INTERLEAVED`; and for a token of a scan whose changes come after its rows. In
                the last two cases, no process would know when the others have read their rows.

        Portability:
            Ids and tokens are valid only for the same provider and resource. MongoDB always has one
            partition, so its feed cannot be distributed. See warnings 7, 11 and 22 in docs/configuration.md.
        """
        check_type("request", request, ChangeFeedRequest)
        check_type("with_descendants", with_descendants, bool)
        backend = self._live("plan_partitions")
        from multiclouddb_api.plan import PartitionPlan

        return PartitionPlan(
            backend.plan_partitions(request, _limits(options), with_descendants=with_descendants)
        )

    def iterate_changes(
        self, request: ChangeFeedRequest, **settings: Unpack[IteratorSettings]
    ) -> ChangeFeedIterator:
        """Return a `ChangeFeedIterator`, which calls `read_changes` in a loop and keeps a checkpoint.

        Args:
            request: The request.
            **settings: The settings of `ChangeFeedIterator`.
        """
        from multiclouddb_api.iterator import ChangeFeedIterator, check_settings

        check_settings("iterate_changes", settings)
        return ChangeFeedIterator(self, request, **settings)

    def run_command(self, database: str, command: Mapping[str, Any], **options: Any) -> Any:
        """Run a native command of the service; the library neither changes nor retries it.

        Args:
            database: The database in which to run the command.
            command: The command as the service accepts it.
            **options: The provider's own options: on MongoDB, the fields of
                `multiclouddb_mongo.RunCommandOptions`, or of `RunCursorCommandOptions` for a cursor.

        Portability:
            MongoDB only. Check `Capability.RUN_COMMAND`. See warning 14 in docs/configuration.md.
        """
        _check_command(database, command)
        return self._live("run_command").run_command(database, command, options)

    def run_cursor_command(self, database: str, command: Mapping[str, Any], **options: Any) -> Any:
        """Run a command whose reply is a cursor; return an iterator of its documents, with a `close` method.

        See also `run_command`, which has the same arguments.

        Portability:
            MongoDB only. Check `Capability.RUN_COMMAND`. See warning 14 in docs/configuration.md.
        """
        _check_command(database, command)
        return self._live("run_cursor_command").run_cursor_command(database, command, options)

    def capabilities(self, provider_options: ProviderOptions | None = None) -> CapabilitySet:
        """Return what this database can do if it is set up as documented; nothing is sent to it.

        Args:
            provider_options: The provider's options of the request, if there are any.

        Portability:
            Options change the capabilities only on Cosmos DB: `CosmosOptions(mode="latest")` reads a feed
            without deletes. See warning 1 in docs/configuration.md.
        """
        check_type("provider_options", provider_options, ProviderOptions, NoneType)
        return self._live("capabilities").capabilities(provider_options)

    def close(self) -> None:
        """Free all resources; calls that are still running end within a second.

        Any thread may call this method, and more than once, but not a signal handler: the call that it has
        interrupted may hold a lock that closing needs. Raise an exception there, or call `stop` of the
        iterator.
        After a fork, it does nothing in the child.
        """
        if not self._home.is_here:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._backend.close()

    def __enter__(self) -> MulticloudDbClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> NoReturn:
        raise invalid_request(
            "MulticloudDbClient", "blocks its thread", "write with, or connect with multiclouddb.aio.connect"
        )

    async def __aexit__(self, *_: object) -> None: ...

    def __repr__(self) -> str:
        return f"<MulticloudDbClient {self._config!r}{' closed' if self._closed else ''}>"

    def __reduce__(self) -> NoReturn:
        raise invalid_request(
            "MulticloudDbClient",
            "cannot be pickled",
            "pickle client.config and connect(config) in the other process",
        )

    def _live(self, operation: str) -> Backend:
        self._home.check()
        if self._closed:
            raise self._error(operation, "this client is closed; open another with connect(client.config)")
        return self._backend

    def _error(self, operation: str, message: str) -> MulticloudDbError:
        return MulticloudDbError(
            message,
            ErrorDetail(ErrorCategory.INVALID_REQUEST, provider=self._config.provider, operation=operation),
        )
