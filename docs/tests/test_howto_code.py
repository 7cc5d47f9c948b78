"""Checks what pages say about their programs, beyond the output of their blocks."""

import json
import re
import runpy
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import multiclouddb_api as api
from multiclouddb.otel import OpenTelemetryObserver
from multiclouddb.prometheus import PrometheusObserver
from multiclouddb_conformance.simulation import Simulation, SimulationProvider, ThrottledError
from multiclouddb_embedded import EmbeddedStore, Put
from multiclouddb_spi import Engine

DOCS = Path(__file__).resolve().parents[1]
ORDERS = api.ResourceAddress("main", "orders")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(folder):
    with EmbeddedStore(folder / "orders.db", durable=False) as store:
        yield store


def write_program(page, name):
    """Write a program of a page into the current folder."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (code,) = re.findall(rf'^```python title="{re.escape(name)}"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    Path(name).write_text(code, encoding="utf-8")
    return code


def by_opentelemetry(read, **options):
    """After a run, map each metric of the page's observer, with its labels, to its value or count."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observer = OpenTelemetryObserver(provider.get_meter("it"), **options)
    read(observer)
    (resource,) = reader.get_metrics_data().resource_metrics
    provider.shutdown()
    return {
        (metric.name, *point.attributes.values()): getattr(point, "value", None)
        for metric in resource.scope_metrics[0].metrics
        for point in metric.data.data_points
    }


def by_prometheus(read, **options):
    registry = CollectorRegistry()
    read(PrometheusObserver(registry, **options))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def engine_of(sim, observer):
    return Engine(
        SimulationProvider(sim), api.ClientConfig("simulation"), observer, pause=lambda seconds: None
    )


def read_to_end(engine, sim, token=None):
    """Read until the feed is idle; return the token."""
    place, idle = api.Beginning() if token is None else api.FromContinuationToken(token), False
    while not idle:
        page = engine.read_changes(api.ChangeFeedRequest(sim.address, place), api.OperationOptions())
        place, idle = api.FromContinuationToken(page.continuation_token), page.idle
    return page.continuation_token


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("metrics", [by_opentelemetry, by_prometheus])
class TestMetrics:
    def reading(self, partitions, fault=None):
        """Split every partition of a simulated collection, and read the whole collection."""

        def read(observer):
            sim = Simulation(partitions=partitions, retention_seconds=3600)
            for number in range(5 * partitions):
                sim.write(f"k{number}", {"n": number})
            for name in sim.open_partitions:
                sim.split(name)
            if fault is not None:
                sim.fail_next("p0", fault, times=2)
            with closing(engine_of(sim, observer)) as engine:
                read_to_end(engine, sim)

        return read

    def test_there_are_not_more_series_with_more_partitions(self, metrics):
        few, many = metrics(self.reading(1)), metrics(self.reading(40))
        assert few.keys() == many.keys()
        assert many != few

    @pytest.mark.parametrize("partitions", [2, 100])
    def test_the_last_partitions_have_series_as_many_as_were_wanted(self, metrics, partitions):
        found = metrics(self.reading(partitions), partitions=5)
        names = [name for name in found if "partition_" in name[0] or "partition." in name[0]]
        counts = Counter(name[0] for name in names if "errors" not in name[0])
        assert set(counts.values()) == {min(5, 2 * partitions)}
        assert len(counts) == 3, counts

    def test_the_partition_that_fails_is_among_the_last(self, metrics):
        sim = Simulation(partitions=20)
        sim.write("k", {})
        bad = sim.public_id("p7")

        def read(observer):
            with closing(engine_of(sim, observer)) as engine:
                token = read_to_end(engine, sim)
                sim.advance(300)
                sim.fail_next("p7", ThrottledError("slow down", 0.0), times=None)
                request = api.ChangeFeedRequest(sim.address, api.FromContinuationToken(token))
                engine.read_changes(request, api.OperationOptions(timeout_seconds=2))

        found = metrics(read, partitions=1)
        lags = {
            name[-1]: value for name, value in found.items() if "partition" in name[0] and "lag" in name[0]
        }
        assert lags.keys() == {bad}

    def test_an_ended_partition_has_no_series(self, metrics):
        sim = Simulation(partitions=3)

        def read(observer):
            with closing(engine_of(sim, observer)) as engine:
                token = read_to_end(engine, sim)
                sim.split("p1")
                read_to_end(engine, sim, token)

        named = {name[-1] for name in metrics(read, partitions=100) if "partition" in name[0]}
        assert sim.public_id("p1") not in named
        assert set(map(sim.public_id, sim.open_partitions)) <= named

    @pytest.mark.parametrize("count", [-1, 1.5, True])
    def test_a_count_of_partitions_that_is_none_is_refused(self, metrics, count):
        with pytest.raises(api.MulticloudDbError, match="partitions") as caught:
            metrics(lambda observer: None, partitions=count)
        assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    def test_retries_are_counted(self, metrics):
        found = metrics(self.reading(2, ThrottledError("slow down", 0.0)))
        assert [
            value for name, value in found.items() if "retries" in name[0] and "created" not in name[0]
        ] == [2]

    def test_an_outage_has_its_length_until_it_ends(self, metrics):
        for ended in (False, True):

            def read(observer, ended=ended):
                observer.outage(ORDERS, 32.0, "connection refused")
                if ended:
                    observer.outage_ended(ORDERS, 34.0)

            lengths = [value for name, value in metrics(read).items() if "outage" in name[0]]
            assert lengths == [0 if ended else 32]


def test_a_scrape_shows_counters_at_zero_before_the_first_page(store):
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry, collections=(ORDERS,))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as response:
            (gaps,) = [
                sample.value
                for metric in text_string_to_metric_families(response.read().decode())
                for sample in metric.samples
                if sample.name == "multiclouddb_feed_gaps_total" and sample.labels["collection"] == "orders"
            ]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert gaps == 0
    assert isinstance(observer, api.Observer)


def test_the_dashboard_names_only_metrics_that_exist():
    registry = CollectorRegistry()
    PrometheusObserver(registry, collections=(ORDERS,), partitions=1)
    names = {metric.name + end for metric in registry.collect() for end in ("", "_total", "_bucket")}
    dashboard = json.loads((DOCS / "assets/grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= len(dashboard["panels"])
    assert {name for each in expressions for name in re.findall(r"multiclouddb_\w+", each)} <= names


class TestPoison:
    @pytest.mark.parametrize("broken", [1, 3, 5], ids=["first", "middle", "last"])
    def test_a_poison_record_is_buried_wherever_it_is(self, store, broken):
        write_program("reference/poison-records.md", "reader.py")
        reader = runpy.run_path("reader.py")["Reader"]
        store.create_collection("orders", partitions=1)
        store.batch("orders", [Put(f"o-{number}", {"number": number}) for number in range(1, 6)])
        with closing(sqlite3.connect(store.path)) as database, database:
            database.execute("UPDATE log SET doc = '{' WHERE seq = ?", (broken,))
        with (
            closing(sqlite3.connect("letters.db")) as letters,
            api.connect(f"embedded://{store.path}") as client,
        ):
            for _ in range(2):  # the second reader finds the record again, but does not store it again
                pages = reader(client, ORDERS, api.Beginning(), letters).pages()
                numbers = [event.new_item_state["number"] for page in pages for event in page.events]
                assert sorted({*numbers, broken}) == [1, 2, 3, 4, 5]
                assert len(numbers) == 4
            (message,) = letters.execute("SELECT message FROM dead_letters").fetchall()
        assert f"sequence {broken}," in message[0]
