"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

from uuid import uuid4

from multiclouddb_api import ErrorCategory
from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
    refusal,
)

from .stores import azure_blob, opened
from .trouble import TestTrouble  # noqa: F401

SCHEME = "azblob"


def test_a_lease_of_another_process_is_a_conflict(served):
    store = opened(served, f"leased-{uuid4().hex}")
    first = store.save("orders", "1", None)
    lease = azure_blob(store).acquire_lease(60)
    for call in (lambda: store.save("orders", "2", first.version), lambda: store.delete("orders")):
        error = refusal(call)
        assert error.category == ErrorCategory.CONFLICT
        assert "lease break" in error.message
    lease.release()
    assert store.save("orders", "2", first.version).token == "2"
