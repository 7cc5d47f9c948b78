import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from multiclouddb_cli.main import app
from multiclouddb_embedded import EmbeddedStore

from .terminals import PROGRAM

PLUGIN = """
import random

from multiclouddb_api import Capability, CapabilityNote, CapabilitySet, ErrorCategory, Support
from multiclouddb_spi import Fault, Provider, ProviderFault, ProviderPlugin

VENDOR = "refused what was signed with a secret"


class Dead(Provider):
    provider_id = "fake"

    def __init__(self, tried_again):
        self.tried_again = tried_again

    def capabilities(self):
        return CapabilitySet({each: CapabilityNote(Support.NATIVE) for each in Capability})

    def open_feed(self, spec, deadline):
        raise ConnectionError("nobody at mongodb://me:a-hidden-key@host/")

    def classify(self, error):
        return Fault(ErrorCategory.TRANSIENT_FAILURE, f"{error}; check the host", retryable=True,
                     vendor_retried=self.tried_again)

    def close(self):
        pass


class Plugin(ProviderPlugin):
    provider_id = "fake"

    def connect(self, config, native_client):
        kind = config.connection["url"].rpartition("/")[2]
        if kind.startswith("DEAD"):
            # Waits between two attempts are random; the longest leave time for the report of the outage.
            random.uniform = max
            return Dead(kind == "DEAD-ONCE")
        if kind == "DEFECT":
            raise KeyError("a defect")
        message = "first line of " + config.connection["url"] + "\\nsecond"
        raise ProviderFault(Fault(ErrorCategory(kind), message)) from OSError(VENDOR)

    def capabilities(self):
        return CapabilitySet({Capability.CHANGE_FEED: CapabilityNote(Support.EMULATED, "opt in with x")})


PLUGIN = Plugin()
"""


class Clock:
    """A clock for a store; it starts half an hour ago, and each call advances it by a second."""

    def __init__(self):
        self.time = datetime.now(UTC) - timedelta(minutes=30)

    def __call__(self):
        self.time += timedelta(seconds=1)
        return self.time


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shop.db"


@pytest.fixture
def url(path):
    return f"embedded://{path}"


@pytest.fixture
def store(path):
    """Make a store with ten orders in two partitions."""
    with EmbeddedStore(path, clock=Clock(), durable=False) as store:
        store.create_collection("orders", 2, retention=timedelta(hours=2))
        for number in range(10):
            store.put("orders", f"o-{number}", {"total": number})
        yield store


@pytest.fixture
def run():
    """Run a `multiclouddb` command in this process."""

    def invoke(*words, **settings):
        return CliRunner().invoke(app, [str(word) for word in words], **settings)

    return invoke


@pytest.fixture
def shell(tmp_path):
    """Run a line in a shell, where `multiclouddb` is available as a command."""

    def invoke(line, **environment):
        line = f'set -o pipefail; multiclouddb() {{ {" ".join(PROGRAM)} "$@"; }}; {line}'
        return subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=200, cwd=tmp_path,
            check=False, env={**os.environ, **environment},
        )  # fmt: skip

    return invoke


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Install a provider that fails in the way that its URL specifies."""
    info = tmp_path / "site" / "multiclouddb_fake-9.8.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: multiclouddb-fake\nVersion: 9.8\n")
    (info / "entry_points.txt").write_text(
        "[multiclouddb.providers]\nfake = fake_provider:PLUGIN\nbroken = no_such_sdk_module:PLUGIN\n"
    )
    (tmp_path / "site" / "fake_provider.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield "fake://user:secret@host"
    sys.modules.pop("fake_provider", None)
