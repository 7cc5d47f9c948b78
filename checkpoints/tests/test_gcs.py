"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

import gzip
import re
from types import SimpleNamespace
from uuid import uuid4

import pytest
from google.auth import compute_engine
from google.auth.exceptions import DefaultCredentialsError

from multiclouddb_api import ErrorCategory, open_checkpoint_store
from multiclouddb_checkpoints import gcs
from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
    refusal,
)
from multiclouddb_spi.machine_role import MachineRole

from .stores import opened
from .trouble import (  # noqa: F401
    TestIgnoredConditions,
    TestPromisedConditions,
    TestRenewal,
    TestTrouble,
    Troubled,
    google,
    probes,
)

SCHEME = "gs"


def test_a_content_is_read_as_it_is_stored_and_up_to_the_bound(served, monkeypatch):
    """A library would make a megabyte of an object of a kilobyte that says that it is compressed."""
    monkeypatch.setattr(gcs, "MOST_BYTES", 1 << 16)
    store = opened(served, f"large-{uuid4().hex}")
    saved = store.save("orders", "1", None)
    assert store.load("orders") == saved
    blob = store._blob(store._key("orders"))
    for content, encoding in ((gzip.compress(bytes(1 << 20)), "gzip"), (bytes(1 << 20), None), (b"", None)):
        blob.content_encoding = encoding
        blob.upload_from_string(content)
        assert store._read(store._key("orders"))[0] == content[: (1 << 16) + 1]
        assert refusal(store.load, "orders").category == ErrorCategory.INVALID_REQUEST


@pytest.mark.parametrize(
    ("status", "category"),
    [(503, ErrorCategory.TRANSIENT_FAILURE), (404, ErrorCategory.AUTHENTICATION_FAILED)],
)
def test_a_metadata_server_that_fails_is_no_missing_account(served, monkeypatch, status, category):
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda seconds: None)
    headers = {"content-type": "text/plain"}
    store = opened(served, f"account-{uuid4().hex}")

    def refused(*_, **__):
        compute_engine.Credentials().refresh(
            lambda **_: SimpleNamespace(status=status, headers=headers, data=b"what it says")
        )

    monkeypatch.setattr(store, "_read", refused)
    assert refusal(store.load, "orders").category == category


@pytest.mark.parametrize(
    ("is_down", "category"),
    [(True, ErrorCategory.TRANSIENT_FAILURE), (False, ErrorCategory.AUTHENTICATION_FAILED)],
)
def test_a_first_look_for_credentials_may_meet_an_outage(monkeypatch, is_down, category):
    def connect(_):
        raise DefaultCredentialsError("Your default credentials were not found.")

    monkeypatch.setattr(gcs, "_ACCOUNT", MachineRole(lambda: is_down))
    monkeypatch.setattr(gcs.GcsCheckpointStore, "_connect", connect)
    assert refusal(open_checkpoint_store("gs://bucket/p").load, "orders").category == category


class TestLarge(Troubled):
    """The library writes more than 8 MiB with other requests, whose conditions some servers ignore."""

    def test_conditions_are_proved_for_them_too(self, store, between):
        between.unconditional = "uploadType=resumable"
        first = store.save("orders", "1", None)
        error = refusal(store.save, "orders", "x" * (9 << 20), first.version)
        self.check(error, "UNSUPPORTED_CAPABILITY")
        assert "of this size" in error.message
        assert store.load("orders") == first
        assert {store.load(probe) for probe in probes(between)} == {None}
        assert store.save("orders", "2", first.version).token == "2"

    def test_at_the_hosts_of_google_nothing_is_proved(self, store, between, monkeypatch):
        monkeypatch.setattr(type(store), "keeps_conditions", re.compile(r"127\.0\.0\.1"))
        saved = store.save("orders", "x" * (9 << 20), None)
        assert store.load("orders") == saved
        assert not probes(between)


class TestAbsence(Troubled):
    """Tests that at Google's own hosts, only the words of the service say that there is no object."""

    @pytest.mark.parametrize(
        "answer", [google(404, "Not Found"), (404, {"Content-Type": "text/html"}, "Not Found")]
    )
    def test_a_proxy_does_not_know_it(self, store, between, monkeypatch, answer):
        monkeypatch.setattr(type(store), "keeps_conditions", re.compile(r"127\.0\.0\.1"))
        first = store.save("orders", "1", None)
        between.answer = answer
        for call in (lambda: store.load("orders"), lambda: store.delete("orders")):
            self.check(refusal(call), "NOT_FOUND")
        between.answer = 404, {"Content-Type": "text/html"}, "No such object: bucket/orders"
        assert store.load("orders") is None
        between.answer = None
        assert store.load("orders") == first
