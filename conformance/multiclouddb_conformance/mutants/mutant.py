"""The base class of all mutants: a simulation with one defect between the simulation and the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

import attrs

from multiclouddb_api import (
    CapabilitySet,
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    ClientConfig,
    MulticloudDbError,
    Observer,
    OperationOptions,
)
from multiclouddb_conformance.delegating import WrappedMapper, WrappedPlugin, WrappedProvider
from multiclouddb_conformance.simulated import SIMULATED, SimulationHarness
from multiclouddb_spi import Batch, Cursor, Engine, InlineExecutor, Provider, ProviderPlugin

__all__ = ["Mutant", "MutantEngine", "changed", "emptied", "harness_of"]


class Mutant(WrappedProvider):
    """A provider with one defect, which the first line of its docstring describes."""

    caught_by: ClassVar[tuple[str, ...]] = ()
    declared: ClassVar[CapabilitySet] = SIMULATED
    config: ClientConfig

    def answer(
        self,
        read: Callable[[ChangeFeedRequest, OperationOptions], ChangeFeedPage],
        request: ChangeFeedRequest,
        options: OperationOptions,
    ) -> ChangeFeedPage:
        """Return the page that `read_changes` must return."""
        return read(request, options)

    def error(self, error: MulticloudDbError) -> MulticloudDbError:
        """Return the error that is raised in place of `error`; by default, `error` itself."""
        return error


class MutantEngine(Engine):
    """An engine whose pages and errors pass through the mutant."""

    def read_changes(self, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        mutant = cast("Mutant", self.provider)
        try:
            return mutant.answer(super().read_changes, request, options)
        except MulticloudDbError as error:
            raise mutant.error(error) from error


def emptied(batch: Batch, end: Cursor | None = None, caught_up: bool | None = True) -> Batch:
    """Return a batch without its records."""
    end = batch.end if end is None else end
    return attrs.evolve(batch, records=(), begin=end, end=end, caught_up=caught_up)


@attrs.frozen(eq=False)
class _Changing(WrappedMapper):
    change: Callable[[list[ChangeEvent]], list[ChangeEvent]]

    def events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        return self.change(self.inner.events(records, start, stop))


def changed(batch: Batch, change: Callable[[list[ChangeEvent]], list[ChangeEvent]]) -> Batch:
    """Return a batch whose events are changed by a function."""
    return attrs.evolve(batch, mapper=_Changing(batch.mapper, change))


class _Made(Protocol):
    def __call__(self, inner: Provider) -> Mutant: ...


class _MutantPlugin(WrappedPlugin):
    def __init__(self, inner: ProviderPlugin, mutant: _Made) -> None:
        super().__init__(inner)
        self._mutant = mutant

    def connect(self, config: ClientConfig, native_client: object | None) -> Provider:
        mutant = self._mutant(self.inner.connect(config, native_client))
        mutant.config = config
        return mutant

    def open(self, config: ClientConfig, native_client: object | None, observer: Observer | None) -> Engine:
        mutant = self.connect(config, native_client)
        return MutantEngine(mutant, config, observer, executor=InlineExecutor(), pause=lambda _: None)


def harness_of(mutant: type[Mutant], *, sound: bool = False) -> type[SimulationHarness]:
    """Make the harness of a mutant."""

    class MutantHarness(SimulationHarness):
        capabilities = mutant.declared

        def open(self) -> None:
            super().open()
            if not sound:
                self.plugin = _MutantPlugin(self.simulated, mutant)

        def close(self) -> None:
            """Close without the contract checks, because a mutant may break the contract."""

    MutantHarness.__name__ = f"{mutant.__name__}Harness"
    return MutantHarness
