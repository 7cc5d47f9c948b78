"""Tests that `snapshot_event_ids` returns the same ids as `snapshot_event_id`, for keys of any type."""

from __future__ import annotations

from typing import Any

import pytest

from multiclouddb_api import MulticloudDbKey
from multiclouddb_spi import snapshot_event_id, snapshot_event_ids

COLUMNS: list[tuple[tuple[str, ...], list[list[Any]]]] = [
    (("id",), [["a", "", 'q"uote\\', "é", "$x", '{"$a":1}']]),
    (("id",), [[0, -1, 2**63 - 1, -(2**63)]]),
    (("id",), [[1, "1", 2**63, 2**64]]),
    (("id",), [[True, False, None, 1.5]]),
    (("pk", "sk"), [["a", "b"], [1, 2]]),
    (("pk", "sk", 'o"dd'), [["a", "b"], ["c", "d"], ["e", "f"]]),
    (("pk", "sk"), [["a", "b"], [b"x", b"y"]]),
    (("id",), [[]]),
]


@pytest.mark.parametrize(("names", "columns"), COLUMNS)
def test_the_ids_are_those_of_single_keys(names: tuple[str, ...], columns: list[list[Any]]) -> None:
    rows = zip(*columns, strict=True)
    keys = [MulticloudDbKey(dict(zip(names, row, strict=True))) for row in rows]
    assert snapshot_event_ids("p", names, columns) == [snapshot_event_id("p", key) for key in keys]
