"""The client of asyncio: the calls of `MulticloudDbClient`, awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from multiclouddb_api.aio.driver import ended
from multiclouddb_api.aio.iterator import AsyncChangeFeedIterator
from multiclouddb_api.aio.threads import Threads
from multiclouddb_api.client import MulticloudDbClient, to_config
from multiclouddb_api.config import ClientConfig, outcome
from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError, check_type, invalid_request
from multiclouddb_api.iterator import check_settings

if TYPE_CHECKING:
    from typing import Unpack

    from multiclouddb_api.capability import CapabilitySet
    from multiclouddb_api.iterator import IteratorSettings
    from multiclouddb_api.key import MulticloudDbKey
    from multiclouddb_api.lookup import LookupAnswer
    from multiclouddb_api.observer import Observer
    from multiclouddb_api.page import ChangeFeedPage
    from multiclouddb_api.plan import PartitionList, PartitionPlan
    from multiclouddb_api.request import ChangeFeedRequest, OperationOptions, ProviderOptions, ResourceAddress
    from multiclouddb_api.token_report import TokenReport

_THREADS: Final = 32


def connect(
    source: str | os.PathLike[str] | ClientConfig,
    *,
    native_client: object | None = None,
    observer: Observer | None = None,
    threads: int = _THREADS,
) -> AsyncMulticloudDbClient:
    """Return a client of asyncio; `async with` or `await` opens it.

    Args:
        source: What `multiclouddb.connect` takes: a URL, the path of a TOML file, or a configuration.
        native_client: A vendor client that the application has already made. It must be a blocking one,
            because the calls are made in threads; one of the vendor's asyncio package is refused.
        observer: Its methods are called in threads of the client or in the event loop, for metrics.
        threads: How many calls may run at the same time; 32 by default. A read occupies a thread while it
            runs, also while it waits for events (`wait_seconds`); a pause between two reads does not.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` for any other source, for a vendor client of asyncio, or for
            `threads` below 1. Errors of `multiclouddb.connect` come when the client is opened.

    Examples:
        >>> async with connect("embedded:///tmp/store.db") as client:
        ...     page = await client.read_changes(request)
    """
    # If this raises an error, no local variable contains the content of a URL.
    source = outcome(to_config, source)
    if isinstance(source, MulticloudDbError):
        raise source
    assert isinstance(source, ClientConfig)
    config = source
    check_type("threads", threads, int)
    if threads < 1:
        raise invalid_request(
            "threads", f"is {threads}, below 1", "give the maximum number of calls at the same time"
        )
    _check_blocks(native_client)
    return AsyncMulticloudDbClient(
        lambda: MulticloudDbClient(config, native_client=native_client, observer=observer), threads
    )


def _check_blocks(native_client: object) -> None:
    kind = type(native_client)
    if hasattr(kind, "__aenter__") and not hasattr(kind, "__enter__"):
        raise invalid_request(
            "native_client",
            f"is a client of asyncio, {kind.__module__}.{kind.__qualname__}",
            "pass the vendor's blocking client, whose calls run in threads, or none",
        )


class AsyncMulticloudDbClient:
    """A client of one database for asyncio, with the calls of `MulticloudDbClient`.

    `connect` makes it. Open it with `async with connect(url) as client`, or with `client = await
    connect(url)` and close it with `await client.close()`. Any number of tasks of the event loop in which it
    was opened may share it; another loop needs a client of its own.

    Cancelling a task loses no events, because a position moves only with a page that was returned.
    `CancelledError` is raised at once, while the call goes on in its thread, at most until its time limit.

    Args:
        make: A function that makes the blocking client; it is called in a thread.
        threads: The maximum number of calls that run at the same time.
    """

    def __init__(self, make: Callable[[], MulticloudDbClient], threads: int = _THREADS) -> None:
        self._make = make
        self._most = threads
        self._threads: Threads | None = None
        self._blocking: MulticloudDbClient | None = None
        self._closed = False

    @property
    def config(self) -> ClientConfig:
        """The configuration of this client."""
        return self.blocking.config

    @property
    def observer(self) -> Observer | None:
        """The observer of this client, or None."""
        return self.blocking.observer

    @property
    def blocking(self) -> MulticloudDbClient:
        """The blocking client that this client uses; other threads may call it."""
        if self._blocking is None:
            raise invalid_request(
                "AsyncMulticloudDbClient",
                "is not open" if not self._closed else "is closed",
                "write: async with connect(url) as client",
            )
        return self._blocking

    @property
    def _open_threads(self) -> Threads:
        self._check("threads")
        assert self._threads is not None
        return self._threads

    def _check(self, operation: str) -> None:
        """Refuse a call of a client that is not open here: in this event loop, in this process."""
        client = self.blocking
        if self._closed:
            raise MulticloudDbError(
                "this client is closed; open another: async with connect(client.config) as client",
                ErrorDetail(
                    ErrorCategory.INVALID_REQUEST, provider=client.config.provider, operation=operation
                ),
            )
        assert self._threads is not None
        self._threads.check()

    async def read_changes(
        self, request: ChangeFeedRequest, options: OperationOptions | None = None
    ) -> ChangeFeedPage:
        """Read one page of changes; see `MulticloudDbClient.read_changes`.

        Args:
            request: The request.
            options: Time limits; 30 seconds by default.
        """
        return await self._call("read_changes", request, options)  # type: ignore[no-any-return]

    async def list_physical_partitions(
        self, address: ResourceAddress | str, options: OperationOptions | None = None
    ) -> PartitionList:
        """Return the open partitions; see `MulticloudDbClient.list_physical_partitions`.

        Args:
            address: The address of the collection, table or container, or its text.
            options: Time limits; 30 seconds by default.
        """
        return await self._call("list_physical_partitions", address, options)  # type: ignore[no-any-return]

    async def collections(
        self, database: str | None = None, options: OperationOptions | None = None
    ) -> tuple[ResourceAddress, ...]:
        """Return the addresses of the collections; see `MulticloudDbClient.collections`.

        Args:
            database: The database to list; None for all of them.
            options: Time limits; 30 seconds by default.
        """
        return await self._call("collections", database, options)  # type: ignore[no-any-return]

    async def lookup(
        self,
        address: ResourceAddress | str,
        keys: Iterable[MulticloudDbKey],
        options: OperationOptions | None = None,
        *,
        provider_options: ProviderOptions | None = None,
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        """Read the current rows with these keys; see `MulticloudDbClient.lookup`.

        Args:
            address: The address of the collection, table or container, or its text.
            keys: At most 1,000 keys, in the form in which events have them.
            options: Time limits; 30 seconds by default.
            provider_options: The provider's options, if it has any.

        Returns:
            Maps each key to its row, to None if there is no such row, or to `NotKnown`.
        """
        return await self._call(  # type: ignore[no-any-return]
            "lookup", address, keys, options, provider_options=provider_options
        )

    async def inspect(
        self,
        token: str,
        options: OperationOptions | None = None,
        *,
        key: MulticloudDbKey | None = None,
        provider_options: ProviderOptions | None = None,
    ) -> TokenReport:
        """Say what a token contains; see `MulticloudDbClient.inspect`.

        Args:
            token: The token.
            options: Time limits; 30 seconds by default.
            key: The partition key, for a token of `LogicalPartition`.
            provider_options: The provider's options for which the token was made.
        """
        return await self._call(  # type: ignore[no-any-return]
            "inspect", token, options, key=key, provider_options=provider_options
        )

    async def plan_partitions(
        self,
        request: ChangeFeedRequest,
        options: OperationOptions | None = None,
        *,
        with_descendants: bool = False,
    ) -> PartitionPlan:
        """Return one token per partition; see `MulticloudDbClient.plan_partitions`.

        Args:
            request: The start position and the modes; its scope must be the entire collection.
            options: Time limits; 30 seconds by default.
            with_descendants: True for tokens of `PhysicalPartition(…, with_descendants=True)`.
        """
        return await self._call(  # type: ignore[no-any-return]
            "plan_partitions", request, options, with_descendants=with_descendants
        )

    def iterate_changes(
        self, request: ChangeFeedRequest, **settings: Unpack[IteratorSettings]
    ) -> AsyncChangeFeedIterator:
        """Return an `AsyncChangeFeedIterator`, which awaits `read_changes` in a loop.

        Args:
            request: The request.
            **settings: The settings of `ChangeFeedIterator`.
        """
        self._check("iterate_changes")
        check_settings("iterate_changes", settings)
        return AsyncChangeFeedIterator(self, request, **settings)

    async def run_command(self, database: str, command: Mapping[str, Any], **options: Any) -> Any:
        """Run a native command of the service; see `MulticloudDbClient.run_command`.

        Args:
            database: The database in which to run the command.
            command: The command as the service accepts it.
            **options: Options that are specific to the provider.
        """
        return await self._call("run_command", database, command, **options)

    async def run_cursor_command(
        self, database: str, command: Mapping[str, Any], **options: Any
    ) -> AsyncCursor:
        """Run a command that replies with a cursor; see `MulticloudDbClient.run_cursor_command`.

        Args:
            database: The database in which to run the command.
            command: The command as the service accepts it.
            **options: Options that are specific to the provider.
        """
        cursor = await self._call("run_cursor_command", database, command, **options)
        return AsyncCursor(self._open_threads, cursor)

    def capabilities(self, provider_options: ProviderOptions | None = None) -> CapabilitySet:
        """Return the capabilities, without any I/O; see `MulticloudDbClient.capabilities`.

        Args:
            provider_options: The provider's options of the request, if there are any.
        """
        self._check("capabilities")
        return self.blocking.capabilities(provider_options)

    async def close(self) -> None:
        """Free all resources; calls that are still running end within a second.

        It may be called more than once, and leaves no thread of the client. After a fork, it does nothing in
        the child.
        """
        if self._closed or self._threads is None or self._blocking is None:
            self._closed = True
            return
        if not self._threads.is_here:
            return
        self._threads.check()
        self._closed = True
        await self._threads.close(self._blocking.close)

    async def __aenter__(self) -> AsyncMulticloudDbClient:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, AsyncMulticloudDbClient]:
        return self._open().__await__()

    def __enter__(self) -> NoReturn:
        raise invalid_request("AsyncMulticloudDbClient", "is entered with with", "write async with")

    def __exit__(self, *_: object) -> None: ...

    def __repr__(self) -> str:
        state = " closed" if self._closed else " not open" if self._blocking is None else ""
        config = "" if self._blocking is None else f" {self._blocking.config!r}"
        return f"<AsyncMulticloudDbClient{config}{state}>"

    def __reduce__(self) -> NoReturn:
        raise invalid_request(
            "AsyncMulticloudDbClient",
            "cannot be pickled",
            "pickle client.config and connect(config) in the other process",
        )

    def _renewed(self) -> AsyncMulticloudDbClient:
        return AsyncMulticloudDbClient(self._make, self._most)

    async def _open(self) -> AsyncMulticloudDbClient:
        if self._closed or self._threads is not None:
            raise invalid_request(
                "AsyncMulticloudDbClient", "was opened before", "call connect again for each use"
            )
        threads = self._threads = Threads(self._most)
        made: list[MulticloudDbClient] = []
        try:
            await threads.start(lambda: made.append(self._make()))
            if self._closed:
                raise invalid_request(
                    "AsyncMulticloudDbClient", "was closed while it was opened", "close it after its use"
                )
            self._blocking = made[0]
        except BaseException:  # whatever ends it, also a cancellation: nobody else can close the client
            self._closed = True

            def untaken() -> None:
                for client in made:
                    client.close()

            # When the threads have ended, a client that nobody takes is there.
            await threads.close(lambda: None, then=untaken)
            raise
        return self

    async def _call(self, operation: str, *arguments: Any, **named: Any) -> Any:
        self._check(operation)
        assert self._threads is not None
        return await self._threads.start(getattr(self.blocking, operation), *arguments, **named)


_END: Final = object()


class AsyncCursor:
    """The documents of a command's cursor, for `async for`.

    Args:
        threads: The threads of the client.
        cursor: The blocking cursor.
    """

    def __init__(self, threads: Threads, cursor: Iterator[Any]) -> None:
        self._threads, self._cursor = threads, cursor
        self._lock = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None

    def __aiter__(self) -> AsyncCursor:
        return self

    async def __anext__(self) -> Any:
        async with self._lock:
            item = await self._next()
        if item is _END:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """Free the cursor on the server."""
        async with self._lock:
            if self._running is not None:
                await ended(self._running)
            await self._threads.start(self._cursor.close)  # type: ignore[attr-defined]

    aclose = close

    async def _next(self) -> Any:
        # If the task is cancelled here, the next one waits for the same call, whose document comes next.
        if self._running is None:
            self._running = self._threads.start(next, self._cursor, _END)
        await ended(self._running)
        done, self._running = self._running, None
        return done.result()
