"""Defines the engine, which a client stands on, and ends its calls when it is closed or interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from multiclouddb_api import (
    Capability,
    CapabilitySet,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    LookupAnswer,
    MulticloudDbKey,
    Observer,
    OperationOptions,
    PlannedPartition,
    ProviderOptions,
    ResourceAddress,
    TokenReport,
)
from multiclouddb_spi.abilities import SupportsCommands
from multiclouddb_spi.batch import Batch
from multiclouddb_spi.calls import Calls, PartsFound
from multiclouddb_spi.contract import Provider
from multiclouddb_spi.errors import user_errors
from multiclouddb_spi.interrupts import Renewed
from multiclouddb_spi.observing import Observing
from multiclouddb_spi.reading.page_builder import Reading
from multiclouddb_spi.request_check import options_of, require
from multiclouddb_spi.retry import ATTEMPTS

T = TypeVar("T")


class Engine:
    """Does all the work of a client except the provider's part.

    It implements `multiclouddb_api.backend.Backend`.

    Args:
        provider: The connected provider, which is closed together with the engine.
        config: The limits.
        observer: The observer of the application, or None.
        executor: The executor for blocking calls; a pool of threads by default.
        attempts: The maximum number of attempts for one call; 1 if the application's own client retries.
        pause: Waits between attempts; tests pass a function that does not wait.
    """

    def __init__(
        self,
        provider: Provider,
        config: ClientConfig,
        observer: Observer | None = None,
        *,
        executor: Executor | None = None,
        attempts: int = ATTEMPTS,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._provider = provider
        observing = Observing(observer)
        self._calls = Renewed(
            partial(Calls, provider, config, observing, executor=executor, attempts=attempts, pause=pause)
        )
        self._is_closed = False

    @property
    def provider(self) -> Provider:
        """The provider, which represents the connected database."""
        return self._provider

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that were fetched or requested but not returned yet."""
        return self._calls.kept.context.budget.used

    def read_changes(self, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        """Return one page of events, as `MulticloudDbClient.read_changes` does."""
        return self._calls.use(Calls.read_changes, request, options)

    def read(
        self, request: ChangeFeedRequest, options: OperationOptions, view: Callable[[Batch, int, int], T]
    ) -> Reading[T]:
        """Return one page with the values that `view(batch, start, stop)` makes.

        `view` may raise `RecordFault`.

        Args:
            request: The request.
            options: Time limits.
            view: A function that makes the returned values from the records `start` to `stop` (exclusive) of
                a batch.

        Raises:
            MulticloudDbError: As `MulticloudDbClient.read_changes` does.
        """
        return self._calls.use(Calls.read, request, options, view)

    def list_physical_partitions(
        self, address: ResourceAddress, options: OperationOptions
    ) -> tuple[str, ...]:
        """Return the ids of the open partitions, as `MulticloudDbClient.list_physical_partitions` does."""
        return self._calls.use(Calls.list_physical_partitions, address, options)

    def plan_partitions(
        self, request: ChangeFeedRequest, options: OperationOptions, *, with_descendants: bool = False
    ) -> tuple[PlannedPartition, ...]:
        """Return one token per partition, as `MulticloudDbClient.plan_partitions` does."""
        return self._calls.use(Calls.plan_partitions, request, options, with_descendants=with_descendants)

    def lookup(
        self,
        address: ResourceAddress,
        keys: Sequence[MulticloudDbKey],
        options: OperationOptions,
        provider_options: ProviderOptions | None,
    ) -> dict[MulticloudDbKey, LookupAnswer]:
        """Return the rows with these keys, as `MulticloudDbClient.lookup` does."""
        return self._calls.use(Calls.lookup, address, keys, options, provider_options)

    def collections(self, database: str | None, options: OperationOptions) -> list[ResourceAddress]:
        """Return the collections in any order, as `MulticloudDbClient.collections` does."""
        return self._calls.use(Calls.collections, database, options)

    def parts(self, request: ChangeFeedRequest, options: OperationOptions) -> PartsFound:
        """Return where a reading of a database begins, and its collections after that; see `parts.py`.

        Args:
            request: The request of the database, with a time to begin at.
            options: The time limit.
        """
        return self._calls.use(Calls.parts, request, options)

    def incarnations(self, request: ChangeFeedRequest, options: OperationOptions) -> Mapping[str, str | None]:
        """Return the collections that a database has now, each with its incarnation.

        Args:
            request: The request of the database.
            options: The time limit.
        """
        return self._calls.use(Calls.incarnations, request, options)

    def inspect(
        self,
        token: str,
        options: OperationOptions,
        key: MulticloudDbKey | None,
        provider_options: ProviderOptions | None,
    ) -> TokenReport:
        """Show what a token contains, as `MulticloudDbClient.inspect` does."""
        return self._calls.use(Calls.inspect, token, options, key, provider_options)

    def run_command(self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """Pass a command to the service without retries, as `MulticloudDbClient.run_command` does."""
        with user_errors(self._provider, "run_command"):
            return self._commands("run_command").run_command(database, command, options)

    def run_cursor_command(
        self, database: str, command: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Pass a cursor command to the service once, as `MulticloudDbClient.run_cursor_command` does."""
        with user_errors(self._provider, "run_cursor_command"):
            return self._commands("run_cursor_command").run_cursor_command(database, command, options)

    def capabilities(self, provider_options: ProviderOptions | None) -> CapabilitySet:
        """Return the capabilities of a request.

        Args:
            provider_options: The provider's options of the request, or None.
        """
        options = options_of(self._provider, provider_options)
        known = self._provider.capabilities()
        return known if options is None else options.narrow(known)

    def close(self) -> None:
        """End all calls within a second."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._calls.close()
        finally:
            with user_errors(self._provider, "close"):
                self._provider.close()

    def _commands(self, operation: str) -> SupportsCommands:
        require(self._provider, (Capability.RUN_COMMAND,), None, operation)
        assert isinstance(self._provider, SupportsCommands)
        return self._provider
