"""Reads pages with a client that keeps what it knows of its consumers between two calls."""

from __future__ import annotations

import json
from collections.abc import Hashable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import attrs

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.delegating import WrappedProvider, WrappedReader
from multiclouddb_conformance.explore.readers import REFUSED, Pages, audit_of, engine_of
from multiclouddb_conformance.explore.service import At, Got
from multiclouddb_conformance.explore.world import World
from multiclouddb_spi import Batch, Deadline, Engine, Feed, Provider
from multiclouddb_spi.faults import ProviderFault

__all__ = ["Kept"]


class Kept(Pages):
    """Whole pages, read by one client that keeps what it knows of the consumer between its calls.

    A token contains the number of its client's last call. To go on from it, a new client repeats the calls up
    to that one, while the service repeats what it did between them. After the step *new client* nothing is
    kept, so the rest of each history is read in both ways.
    """

    def __init__(self) -> None:
        self._calls = list[tuple[At, str]]()  # each at the token of the call before it
        self._client: _Client | None = None

    def begin(self, at: At) -> str:
        return json.dumps([super().begin(at), 0, ""])

    def state(self, token: str) -> Any:
        return super().state(json.loads(token)[0])

    def mark(self, at: At) -> Hashable:
        return json.loads(at.token)[2], super().mark(at)

    def steps(self, at: At) -> list[str]:
        active = [at.index(item[0]) for item in self.state(at.token).get("p", ()) if len(item) == 2]
        faults = [f"page {how} {i}" for how in ("without", "interrupted at") for i in active]
        new = ["new client"] if json.loads(at.token)[1] else []
        return [
            *super().steps(at), "page that fails", "page that is interrupted", "page that is lost",
            "page of another", *faults, *new,
        ]  # fmt: skip

    def rest(self, at: At, world: World) -> list[str]:
        return super().steps(at)[::-1]

    def step(self, at: At, name: str) -> tuple[str, Got]:
        token, number, _ = json.loads(at.token)
        if name == "new client":
            return json.dumps([token, 0, ""]), Got()
        client = self._reached(at, number)
        told = self._call(at, client, name)
        self._calls.append((at, name))
        client.number = len(self._calls)
        return json.dumps([client.token, client.number, client.kept(at, self.rules)]), told

    def _reached(self, at: At, number: int) -> _Client:
        """Return the client that has made a call, and those before it, at the same states of the service."""
        client = self._client
        if number and client is not None and client.number == number and client.server is at.service.server:
            return client
        calls = list[tuple[At, str]]()
        while number:
            calls.append(self._calls[number - 1])
            number = json.loads(calls[-1][0].token)[1]
        if client is not None:
            client.engine.close()
        first = calls[-1][0] if calls else at
        at.service.restore(first.node.saved)
        self._client = client = _Client(first, json.loads(first.token)[0])
        for place, name in reversed(calls):
            at.service.restore(place.node.saved)
            self._call(place, client, name)
        at.service.restore(at.node.saved)
        return client

    def _call(self, at: At, client: _Client, name: str) -> Got:
        fault: BaseException = ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE, "no answer", REFUSED, retryable=True
        )
        if "interrupted" in name:
            fault = KeyboardInterrupt()
        if may_fail := name in ("page that fails", "page that is interrupted"):
            client.page_fault = fault
        elif may_fail := name.startswith(("page without", "page interrupted")):
            client.provider.faults = {at.node.names[int(name.split()[-1])]: fault}
        request = self._request(at, client.token, name)
        token, told = client.token, Got()
        with suppress(KeyboardInterrupt):
            token, told = self._page(at, client.auditing(audit_of(name)), request, may_fail=may_fail)
        client.page_fault, client.provider.faults = None, {}
        client.wait()
        if name in ("page that is lost", "page of another"):
            return Got()
        client.token = token
        return told


class _Client:
    """A client, and the token up to which its application has read.

    Attributes:
        number: The number of its last call.
        server: What it is connected to.
    """

    def __init__(self, at: At, token: str) -> None:
        self.token, self.number, self.server = token, 0, at.service.server
        self.provider = _Faulty(at.service.provider())
        self.engine = engine_of(self.provider, attempts=1)
        self.page_fault: BaseException | None = None

    def auditing(self, every: float) -> Engine:
        """Return the engine, which audits so often in the next call, and whose page fails if it has to."""
        calls = self._calls
        calls.context = attrs.evolve(calls.context, audit_seconds=every)
        calls.pages = _FaultyPages(calls.pages, self)
        return self.engine

    @property
    def _calls(self) -> Any:
        return cast(Any, self.engine)._calls.kept

    def wait(self) -> None:
        """Let the pause pass that is between two looks for the children of a partition."""
        for consumer in self._calls.consumers._kept.values():
            consumer._looks = None

    def kept(self, at: At, rules: Feed) -> str:
        """Return what is kept, as far as it decides what the next calls do."""
        place, found = partial(at.service.place, rules), list[Any]()
        for key, consumer in self._calls.consumers._kept.items():
            parts = list[str]()
            for name, stream in consumer.streams.items():
                left = None if stream.batch is None else (stream.taken, place(stream.position))
                where = place(stream.cursor)
                parts.append(str((name, where, not stream.asked_at, left, stream.due_at > 0)))
            is_native = consumer.feed.spec.include_native
            found.append((key == self.token, consumer.token is None, is_native, sorted(parts)))
        return str(found)


class _FaultyPages:
    """Makes the pages of an engine, or fails after the call has read."""

    def __init__(self, pages: Any, client: _Client) -> None:
        self._pages: Any = pages._pages if isinstance(pages, _FaultyPages) else pages
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pages, name)

    def reading(self, *given: Any) -> Any:
        if self._client.page_fault is not None:
            raise self._client.page_fault
        return self._pages.reading(*given)


class _Faulty(WrappedProvider):
    """A provider some partitions of which do not answer."""

    def __init__(self, inner: Provider) -> None:
        super().__init__(inner)
        self.faults: dict[str, BaseException] = {}

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        if (fault := self.faults.get(reader.partition_id)) is not None:
            raise fault
        return super().fetch(reader, max_records, max_bytes, wait, deadline)
