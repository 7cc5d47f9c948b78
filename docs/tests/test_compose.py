"""Starts the services of `examples/compose.yaml` on this machine, with the commands that the file gives."""

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import boto3
import pytest
import yaml

from .page import ROOT, servers
from .test_metrics_servers import DASHBOARD
from .test_spread import checkpoint_service

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("jvm")]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
SECONDS = 120.0


def wait_until(condition, *processes):
    until = time.monotonic() + SECONDS
    while True:
        try:
            if condition():
                return
        except (OSError, sqlite3.OperationalError):  # a server or a table that is not there yet
            pass
        assert time.monotonic() < until
        assert [process.args for process in processes if process.poll() is not None] == []
        time.sleep(0.1)


def entrypoint(example):
    """Return the command of an image."""
    (line,) = re.findall(
        r"^ENTRYPOINT (.*)$", (EXAMPLES / example / "Dockerfile").read_text(), flags=re.MULTILINE
    )
    return json.loads(line)


@contextmanager
def running(command, folder, environment):
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen([*map(str, command)], cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answer(url):
    with urlopen(url, timeout=10) as got:
        return json.load(got)


def copied(folder):
    with closing(sqlite3.connect(f"file:{folder}/copy.db?mode=ro", uri=True)) as copy:
        return {key for (key,) in copy.execute("SELECT id FROM copy")}


def test_the_services_work_together(tmp_path, monkeypatch):
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    mongod = servers("mongo")("mongod")
    free_port = servers("checkpoints")("servers").free_port
    with ExitStack() as stack:
        replica_set = stack.enter_context(mongod.ReplicaSet(tmp_path / "mongod"))
        positions = stack.enter_context(checkpoint_service("dynamodb"))
        ports = {name: free_port() for name in ("api", "prometheus")}
        # 1. The names and ports of the containers, and how long the others wait for a worker.
        here = {
            "mongo:27017": replica_set.members[0],
            "replicaSet=rs0": f"replicaSet={mongod.NAME}",
            "dynamodb:8000": urlsplit(positions.endpoint).netloc,
            "api:8000": f"127.0.0.1:{ports['api']}",
            '"8000"': f'"{ports["api"]}"',
            '"30"': '"2"',
            "0.0.0.0": "127.0.0.1",
        }

        def local(value):
            text = json.dumps(value)
            for name, place in here.items():
                text = text.replace(name, place)
            return json.loads(text)

        # 2. The table of the positions, from the words that the file gives to the AWS command line.
        environment = local(services["positions"]["environment"])
        (script,) = services["positions"]["command"]
        words = shlex.split(script.partition("create-table")[2].partition(";")[0])
        given = dict(word.removeprefix("--").partition("=")[::2] for word in words)
        keys = [dict(part.split("=") for part in given["key-schema"].split(","))]
        columns = [dict(part.split("=") for part in given["attribute-definitions"].split(","))]
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        table = stack.enter_context(closing(boto3.client("dynamodb")))
        table.create_table(
            TableName=given["table-name"],
            KeySchema=keys,
            AttributeDefinitions=columns,
            BillingMode=given["billing-mode"],
        )

        # 3. Three workers and the service.
        program = [sys.executable, EXAMPLES / "worker" / entrypoint("worker")[1]]
        folders = [
            tmp_path / f"worker-{number}" for number in range(services["worker"]["deploy"]["replicas"])
        ]
        command = [*program, *local(services["worker"]["command"])]
        workers = [
            stack.enter_context(
                running(command, folder, {**os.environ, **local(services["worker"]["environment"])})
            )
            for folder in folders
        ]
        service, *more = local(entrypoint("fastapi"))
        environment = {**os.environ, **local(services["api"]["environment"])}
        words = [BIN / service, "--app-dir", EXAMPLES / "fastapi", *more]
        api = stack.enter_context(running(words, tmp_path / "api", environment))

        # 4. A worker that is killed is replaced, and nothing is lost.
        orders = replica_set.client()["shop"]["orders"]
        orders.insert_many([{"_id": f"o-{number}", "status": "new"} for number in range(100)])

        def followed_by():
            return [folder for folder in folders if folder.joinpath("copy.db").exists() and copied(folder)]

        wait_until(followed_by, *workers, api)
        (first,) = followed_by()
        wait_until(lambda: len(copied(first)) == 100, *workers, api)
        workers.pop(folders.index(first)).kill()
        orders.insert_one({"_id": "later", "status": "new"})
        wait_until(lambda: any("later" in copied(folder) for folder in followed_by()), *workers, api)
        assert "later" not in copied(first)

        # 5. Prometheus with its own settings.
        settings = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
        settings["global"]["scrape_interval"] = "1s"
        (tmp_path / "prometheus.yml").write_text(json.dumps(local(settings)))
        words = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        words.append(f"--web.listen-address=127.0.0.1:{ports['prometheus']}")
        stack.enter_context(running([DASHBOARD["program"]("prometheus"), *words], tmp_path, os.environ))
        wait_until(lambda: answer(f"http://127.0.0.1:{ports['api']}/orders/later")["status"] == "new", api)
        asked = urlencode({"query": 'multiclouddb_feed_pages_total{job="orders"}'})
        query = f"http://127.0.0.1:{ports['prometheus']}/api/v1/query?{asked}"
        wait_until(lambda: answer(query)["data"]["result"], api)
