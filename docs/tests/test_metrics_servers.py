"""Tests both observers against real servers: a Prometheus that scrapes, and a receiver of OTLP."""

import runpy
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from prometheus_client import CollectorRegistry, start_http_server

import multiclouddb_api as api
from multiclouddb.otel import OpenTelemetryObserver
from multiclouddb.prometheus import PrometheusObserver
from multiclouddb_embedded import EmbeddedStore

DASHBOARD = runpy.run_path(str(Path(__file__).parents[1] / "dashboard.py"))
SECONDS = 90.0


def wait_until(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_prometheus_scrapes_what_the_dashboard_and_the_alerts_ask_for():
    with DASHBOARD["scene"](20.0) as port, DASHBOARD["prometheus"](port, DASHBOARD["rules"]()) as server:
        wait_until(lambda: (server.value("sum(multiclouddb_feed_events_total)") or 0) > 50)
        assert server.value('multiclouddb_feed_lag_seconds{collection="orders"}') >= 0
        # A rate needs two scrapes.
        for panel in DASHBOARD["panels"]():
            for target in panel["targets"]:
                found = server.ask("query", query=target["expr"])
                assert found["resultType"] == "vector", panel["title"]
            # Nothing fails in this scene.
            if not panel["title"].startswith(("Retries", "Time without", "Gaps")):
                wait_until(lambda: server.ask("query", query=target["expr"])["result"])  # noqa: B023
        wait_until(lambda: server.ask("rules")["groups"])
        (group,) = server.ask("rules")["groups"]
        wait_until(lambda: all(each["health"] == "ok" for each in server.ask("rules")["groups"][0]["rules"]))
        assert {each["name"] for each in group["rules"]} >= {
            "FeedStandsStill",
            "ChangesWereLost",
            "FeedIsLate",
        }
        assert server.ask("alerts")["alerts"] == []


def test_a_thousand_partitions_make_as_many_series_as_were_wanted(tmp_path):
    registry = CollectorRegistry()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
        address = store.create_collection("orders", partitions=1000, retention=timedelta(hours=24))
        store.put("orders", "o-1", {})
        try:
            observer = PrometheusObserver(registry, partitions=10)
            with (
                api.connect(f"embedded://{store.path}", observer=observer) as client,
                DASHBOARD["prometheus"](server.server_port) as prometheus,
            ):
                request = api.ChangeFeedRequest(address, api.Beginning())
                with client.iterate_changes(request, max_idle_backoff_seconds=0.5) as changes:
                    pages = changes.pages()

                    def scraped(name):
                        next(pages)
                        return prometheus.value(f"count(multiclouddb_feed_partition_{name})")

                    for name in ("lag_seconds", "retention_headroom_seconds", "watermark_timestamp_seconds"):
                        wait_until(lambda: scraped(name) == 10)  # noqa: B023
                    (most,) = prometheus.ask("query", query="max(multiclouddb_feed_partition_lag_seconds)")[
                        "result"
                    ]
                    assert float(most["value"][1]) < SECONDS
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.mark.parametrize("group", ["multiclouddb", "multiclouddb-positions"])
def test_the_alerts_pass_the_linter_of_prometheus(tmp_path, group):
    (tmp_path / "rules.yml").write_text(DASHBOARD["rules"](group))
    promtool = DASHBOARD["program"]("promtool")
    ran = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@contextmanager
def receiver():
    """Run a receiver of OTLP over HTTP; give its address and the requests that it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(ExportMetricsServiceRequest.FromString(body))
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_receiver_of_otlp_gets_the_metrics(tmp_path):
    with receiver() as (endpoint, got), EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
        address = store.create_collection("orders", partitions=8, retention=timedelta(hours=24))
        for number in range(10):
            store.put("orders", f"o-{number}", {})
        exporter = OTLPMetricExporter(endpoint=endpoint)
        provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)])
        observer = OpenTelemetryObserver(provider.get_meter("multiclouddb"), partitions=3)
        with api.connect(f"embedded://{store.path}", observer=observer) as client:
            request = api.ChangeFeedRequest(address, api.Beginning())
            with client.iterate_changes(request, until_idle=True) as changes:
                assert len(list(changes)) == 10
        provider.shutdown()  # it sends what is left
    metrics = {
        metric.name: metric
        for request in got
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    (events,) = metrics["multiclouddb.feed.events"].sum.data_points
    assert events.as_int == 10
    attributes = {each.key: each.value.string_value for each in events.attributes}
    assert attributes["db.collection.name"] == "orders"
    assert metrics["multiclouddb.feed.lag"].unit == "s"
    assert len(metrics["multiclouddb.feed.read.duration"].histogram.data_points) == 1
    for name in ("lag", "retention.headroom", "watermark"):
        points = metrics[f"multiclouddb.feed.partition.{name}"].gauge.data_points
        assert len(points) == 3
        named = {each.key: each.value.string_value for each in points[0].attributes}
        assert named["messaging.destination.partition.id"]
