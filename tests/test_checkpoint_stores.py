"""Runs the tests of the conformance kit for checkpoint stores on the file store."""

import pytest

from multiclouddb_api import FileCheckpointStore
from multiclouddb_conformance.checkpoint_stores import *  # noqa: F403
from multiclouddb_conformance.checkpoint_stores import FileStoreKind


@pytest.fixture
def kind():
    return FileStoreKind.of(
        FileCheckpointStore,
        "",
        file=lambda store: store.path("orders"),
        delete=lambda store: store.path("orders").unlink(),
        files=frozenset({"orders.checkpoint.json", ".orders.lock"}),
    )
