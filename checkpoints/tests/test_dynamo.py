"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

from uuid import uuid4

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_api.checkpoint import MOST_BYTES
from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
    refusal,
)

from .stores import dynamo_put, opened
from .trouble import (  # noqa: F401
    TestExceptionClasses,
    TestIgnoredConditions,
    TestPromisedConditions,
    TestRenewal,
    TestTrouble,
)

SCHEME = "dynamodb"


@pytest.mark.parametrize("body", [b"[" + b"[]," * 3_000_000 + b"[]]", b'"' + b"x" * (MOST_BYTES + 9) + b'"'])
def test_a_small_item_that_becomes_a_large_content_is_refused(served, body):
    """Ten million lists fit into an item of 58 kB; in Python they take gigabytes."""
    store = opened(served, f"large-{uuid4().hex}")
    dynamo_put(store, body)
    assert refusal(store.load, "orders").category == ErrorCategory.INVALID_REQUEST
