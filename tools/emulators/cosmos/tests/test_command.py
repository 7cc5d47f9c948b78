"""Tests `python -m multiclouddb_cosmos_emulator` and the README."""

import re
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from urllib3.exceptions import InsecureRequestWarning

FOLDER = Path(__file__).parents[1]


@contextmanager
def started(*arguments):
    """Start a server in a separate process, and return its output."""
    command = [sys.executable, "-W", "error", "-m", "multiclouddb_cosmos_emulator", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        printed = {}
        while not (line := process.stdout.readline()).startswith("Interrupt"):
            assert line, process.stderr.read()
            name, _, value = line.partition(" ")
            printed[name] = value.strip()
        yield process, printed
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("arguments", [(), ("--https",)], ids=["http", "https"])
def test_it_prints_endpoint_and_key_and_serves(arguments, connected):
    with started(*arguments) as (_, printed), warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRequestWarning)
        with connected(printed["endpoint"], printed["key"]) as client:
            container = client.create_database("shop").create_container("orders", PartitionKey("/pk"))
            container.create_item({"id": "1", "pk": "a"})
            assert len(list(container.query_items_change_feed(start_time="Beginning"))) == 1
        assert Path(printed.get("certificate", __file__)).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_when_interrupted(number):
    with started() as (process, printed), CosmosClient(printed["endpoint"], printed["key"]) as client:
        client.create_database("shop")
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert errors == ""


def test_a_port_that_is_taken_is_named():
    with started() as (_, printed):
        port = re.search(r":(\d+)/", printed["endpoint"])[1]
        command = [sys.executable, "-m", "multiclouddb_cosmos_emulator", "--port", port]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"cannot serve localhost:{port}:")
    assert "Traceback" not in ran.stderr
