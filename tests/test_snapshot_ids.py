"""Tests the event ids of rows: those of recorded keys, and the texts that they are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from multiclouddb_api import MulticloudDbKey
from multiclouddb_spi import Scan, canonical_texts
from multiclouddb_spi.rows import event_ids_of

COLUMNS: list[tuple[tuple[str, ...], list[list[Any]]]] = [
    (("id",), [["a", "", 'q"uote\\', "é", "$x", '{"$a":1}']]),
    (("id",), [[0, -1, 2**63 - 1, -(2**63)]]),
    (("id",), [[1, "1", 2**63, 2**64]]),
    (("id",), [[True, False, None, 1.5]]),
    (("pk", "sk"), [["a", "b"], [1, 2]]),
    (("pk", "sk", 'o"dd'), [["a", "b"], ["c", "d"], ["e", "f"]]),
    (("pk", "sk"), [["a", "b"], [b"x", b"y"]]),
    (("pk", "sk"), [["a", 1, 2**63, 1.5, True, b"a"], [7] * 6]),
    (("id",), [[]]),
]


@pytest.mark.parametrize(("names", "columns"), COLUMNS)
def test_the_texts_are_those_of_single_keys(names: tuple[str, ...], columns: list[list[Any]]) -> None:
    rows = zip(*columns, strict=True)
    keys = [MulticloudDbKey(dict(zip(names, row, strict=True))) for row in rows]
    assert canonical_texts(names, columns) == [key.canonical() for key in keys]


def test_the_ids_are_those_that_were_recorded() -> None:
    keys = [MulticloudDbKey({"pk": "a", "sk": 7}), MulticloudDbKey({"id": "é"})]
    scan = Scan("f", datetime(2026, 1, 1, tzinfo=UTC), plan_id="plan")
    assert event_ids_of(scan, [key.canonical() for key in keys]) == [
        "snapshot:plan:83d2bfdf6408536fb411036adfc85148",
        "snapshot:plan:441b070550547256552104b9ee7c5591",
    ]


def test_equal_keys_of_two_collections_of_a_database_have_ids_of_their_own() -> None:
    scan, key = Scan("f", datetime(2026, 1, 1, tzinfo=UTC)), MulticloudDbKey({"id": 1}).canonical()
    made = [event_ids_of(scan, [key], name) for name in ("", "a", "b", "a")]
    assert made[1] == made[3]
    assert len({each for (each,) in made}) == 3
