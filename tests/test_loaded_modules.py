"""Tests what a program loads before its first page, because each module makes every start slower."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_REPORT = """
import sys, attrs, orjson
before = set(sys.modules)
import multiclouddb_api
imported = set(sys.modules) - before
from multiclouddb_embedded import EmbeddedStore
store = EmbeddedStore(sys.argv[1])
address = store.create_collection("orders", partitions=2)
store.put("orders", "o-1", {"n": 1})
store.close()
with multiclouddb_api.connect("embedded://" + sys.argv[1]) as client:
    page = client.read_changes(multiclouddb_api.ChangeFeedRequest(address, multiclouddb_api.Beginning()))
assert len(page.events) == 1
print(*sorted({name.partition(".")[0].lstrip("_") for name in imported}))
print(*sorted({name.partition(".")[0].lstrip("_") for name in set(sys.modules) - before}))
print(*sorted(name for name in sys.modules if name.startswith("multiclouddb_")))
"""

IMPORT = """
base64 binascii blake2 contextvars decimal errno fcntl fnmatch hashlib ipaddress multiclouddb_api ntpath
numbers pathlib struct urllib
"""
"""The modules that `import multiclouddb_api` loads in addition to attrs and orjson."""

FIRST_PAGE = """
atexit base64 binascii bisect blake2 concurrent contextvars decimal errno fcntl fnmatch gc hashlib heapq
ipaddress logging multiclouddb_embedded multiclouddb_spi ntpath numbers pathlib queue sqlite3 string struct
textwrap traceback urllib zlib
"""
"""The modules that are loaded in addition by `connect` and the first page of an embedded store."""

OTHERS = "asyncio boto3 difflib email pyarrow pymongo random tenacity tomllib zipfile"
"""What only failures and other paths need; it is not loaded."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[set[str]]:
    """Return the packages after the import and after the first page, and our modules after the first page."""
    path = tmp_path_factory.mktemp("loaded") / "store.db"
    ran = subprocess.run(
        [sys.executable, "-c", _REPORT, str(path)],
        check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    return [set(line.split()) for line in ran.stdout.splitlines()]


def test_the_import_and_the_first_page_load_only_these(loaded: list[set[str]]):
    assert loaded[0] <= set(IMPORT.split())
    assert loaded[1] <= {*IMPORT.split(), *FIRST_PAGE.split()}
    ours = {"multiclouddb_api", "multiclouddb_embedded", "multiclouddb_spi"}
    assert {name.partition(".")[0] for name in loaded[2]} == ours
    assert loaded[1].isdisjoint(OTHERS.split())
