"""Spanner on its scripted server as a service that the explorer reads."""

from bisect import bisect_left

from multiclouddb_api import ClientConfig, ResourceAddress
from multiclouddb_conformance.explore.service import Service
from multiclouddb_conformance.explore.world import ListingKind
from multiclouddb_spanner.client import DatabaseClient
from multiclouddb_spanner.config import SpannerConfig
from multiclouddb_spanner.position import place_of
from multiclouddb_spanner.provider import SpannerProvider
from multiclouddb_spanner_emulator import Habits, ScriptedSpanner, Write
from multiclouddb_spanner_emulator.record import dumped

DATABASE, TABLE, STREAM = "shop", "orders", "orders_stream"
FULL = f"projects/tests/instances/tests/databases/{DATABASE}"
FIRST_SECONDS, DAY = 4 * 3600.0, 24 * 3600.0
SECOND = 10**9


class SpannerService(Service):
    """One table with a change stream that keeps a day."""

    kind = ListingKind.ALIVE
    empty_answers = 40  # one for each window of time
    address = ResourceAddress(DATABASE, TABLE)

    def __init__(self):
        self._server = ScriptedSpanner(Habits())
        self._server.start()
        url = f"spanner://tests/tests?emulator_host={self._server.host}"
        self._config = SpannerConfig.from_client(ClientConfig("spanner", {"url": url}))
        self._client = self._config.client()
        self._transport = self._config.transport(self._client)
        self._moments = {}
        self._empty = self._server.save()

    def begin(self, partitions):
        self._server.restore(self._empty)
        self._moments = {}
        self._server.habits.initial_partitions = partitions
        self._server.create(
            FULL,
            f"CREATE TABLE {TABLE} (id STRING(MAX) NOT NULL, n INT64) PRIMARY KEY (id)",
            f"CREATE CHANGE STREAM {STREAM} FOR {TABLE} OPTIONS (value_capture_type = 'NEW_ROW')",
        )
        return self._server.open_partitions(FULL, STREAM)

    def save(self):
        return dict(self._moments), self._server.save()

    def restore(self, saved):
        moments, state = saved
        self._moments = dict(moments)
        self._server.restore(state)

    def provider(self):
        provider = SpannerProvider(self._client, self._config, ours=True)
        provider._databases[DATABASE] = DatabaseClient(FULL, self._transport, ours=False)
        return provider

    def reshape(self, parents, children):
        self._server.advance(1.0)  # later than everything that was read before
        return self._server.reshape(parents, children)

    def holder(self, key):
        stream = self._server._stream(FULL, STREAM)
        return stream.home(f"{TABLE} {dumped({'id': key})}").token

    def put(self, keys, moment):
        self._server.advance(FIRST_SECONDS / 2**moment)
        rows = [[key, str(moment)] for key in keys]
        write = Write("insert_or_update", TABLE, ("id", "n"), rows)
        self._moments[moment] = self._server.commit(FULL, write)

    def forget(self, moment):
        then = self._moments[moment] / SECOND + DAY + 1.0
        self._server.advance(max(0.0, then - self._server.clock.nanoseconds() / SECOND))

    def place(self, feed, cursor):
        moments = [moment // 1000 for moment in self._moments.values()]
        return bisect_left(moments, feed.moment(cursor)), bool(place_of(cursor).cut.delivered)

    def close(self):
        self._transport.close()
        self._server.stop()
