"""Draws the dashboard of the page *Metrics* from a real Prometheus; `python docs/dashboard.py` renews it.

The tests use the same server to check every expression of the dashboard and every alert.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, start_http_server

from multiclouddb import Beginning, ChangeFeedRequest, ResourceAddress, connect
from multiclouddb.prometheus import PrometheusObserver
from multiclouddb_embedded import EmbeddedStore
from testing.servers import ServerUnavailableError, cache_folder, download

_DOCS: Final = Path(__file__).parent
_PICTURE: Final = _DOCS / "assets/dashboard.png"
_START_SECONDS: Final = 60.0
_SCENE_SECONDS: Final = 75.0
_VARIABLE: Final = re.compile(r'(\w+)=~"\$\w+"')
_ORDERS: Final = ResourceAddress("main", "orders")


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, whose expressions name every database and collection."""
    text = (_DOCS / "assets/grafana-dashboard.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["panels"]
    for panel in found:
        for target in panel["targets"]:
            target["expr"] = _VARIABLE.sub(r'\1=~".*"', target["expr"])
    return found


def rules(group: str = "multiclouddb") -> str:
    """Return the alerts of a group that the page shows."""
    text = (_DOCS / "reference/metrics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(groups:\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = [each for each in blocks if f"- name: {group}\n" in each]
    return str(block)


def program(name: str) -> Path:
    """Return a program of Prometheus, of the machine or of Debian's package."""
    installed = shutil.which(name)
    if installed is not None:
        return Path(installed)
    folder = cache_folder("prometheus")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "prometheus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name_of_scratch:
                scratch = Path(name_of_scratch)
                if os.geteuid() == 0:
                    download(["apt-get", "update", "-qq"], scratch)
                download(["apt-get", "download", "prometheus"], scratch)
                (package,) = scratch.glob("prometheus_*.deb")
                download(["dpkg-deb", "-x", str(package), "unpacked"], scratch)
                (scratch / "unpacked").rename(folder)
    return folder / "usr/bin" / name


class Prometheus:
    """A running Prometheus that scrapes one address."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def ask(self, path: str, **words: object) -> Any:
        """Return the data of an answer."""
        with urlopen(f"{self.endpoint}/api/v1/{path}?{urlencode(words)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def value(self, expression: str) -> float | None:
        """Return the only value of an expression, or None if it has none."""
        found = self.ask("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None


@contextmanager
def prometheus(port: int, alerts: str = "") -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes a port of this machine every second."""
    with tempfile.TemporaryDirectory() as name, closing(socket.create_server(("127.0.0.1", 0))) as free:
        folder, own = Path(name), free.getsockname()[1]
        (folder / "rules.yml").write_text(alerts)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yml")] if alerts else [],
            "scrape_configs": [{"job_name": "feed", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        free.close()
        with (folder / "log").open("w+") as log:
            words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
            words.append(f"--web.listen-address=127.0.0.1:{own}")
            process = subprocess.Popen([program("prometheus"), *words], stdout=log, stderr=log)
            try:
                _await_start(process, own, folder / "log")
                yield Prometheus(f"http://127.0.0.1:{own}")
            finally:
                process.kill()
                process.wait()


def _await_start(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until:
                raise ServerUnavailableError(f"Prometheus did not start\n{log.read_text()}") from error
            time.sleep(0.1)


@contextmanager
def scene(seconds: float) -> Iterator[int]:
    """Follow a store that is written to, and give the port of its metrics; the load rises and falls."""
    registry, stop = CollectorRegistry(), threading.Event()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    observer = PrometheusObserver(registry, collections=(_ORDERS,), partitions=10)
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(f"{folder}/shop.db", durable=False) as store:
        store.create_collection("orders", partitions=2, retention=timedelta(hours=24))

        def write() -> None:
            began, number = time.monotonic(), 0
            while not stop.wait(0.1):
                busy = 1 if (time.monotonic() - began) % (seconds / 2) < seconds / 4 else 5
                for _ in range(busy):
                    number += 1
                    store.put("orders", f"o-{number % 50}", {"number": number})
                    if number % 9 == 0:
                        store.delete("orders", f"o-{number % 50}")

        def follow() -> None:
            with connect(f"embedded://{store.path}", observer=observer) as client:
                changes = client.iterate_changes(
                    ChangeFeedRequest(_ORDERS, Beginning()), max_idle_backoff_seconds=0.5
                )
                with changes:
                    for _ in changes.pages():
                        if stop.is_set():
                            break

        threads = [threading.Thread(target=each) for each in (write, follow)]
        try:
            for each in threads:
                each.start()
            yield server.server_port
        finally:
            stop.set()
            for each in threads:
                each.join()
            server.shutdown()
            server.server_close()
            thread.join()


def draw(ask: Callable[..., Any], began: float, ended: float) -> None:
    """Draw the first four panels, which a feed without failures fills."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    for axes, panel in zip(figure.subplots(2, 2).flat, panels()[:4], strict=True):
        for target in panel["targets"]:
            found = ask("query_range", query=target["expr"], start=began, end=ended, step=1)
            for series in found["result"]:
                points = [(float(at) - began, float(value)) for at, value in series["values"]]
                label = " ".join(value for name, value in series["metric"].items() if name != "database")
                axes.plot(*zip(*points, strict=True), label=label)
        axes.set_title(panel["title"], fontsize=10)
        axes.set_ylabel(
            {"cps": "a second", "s": "seconds"}[panel["fieldConfig"]["defaults"]["unit"]], fontsize=8
        )
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="lower right")
    figure.savefig(_PICTURE, dpi=110, metadata={"Software": None})


def main() -> None:
    """Run the scene, and draw what Prometheus has seen of it."""
    with scene(_SCENE_SECONDS) as port, prometheus(port, rules()) as server:
        began = time.time()
        time.sleep(_SCENE_SECONDS)
        draw(server.ask, began, time.time())


if __name__ == "__main__":
    main()
