"""Tests what `verify` reads in a table, judges and repairs."""
# ruff: noqa: D102 - a test's name says what it tests

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    MulticloudDbError,
    encode_json,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.refusals import check_refusal
from multiclouddb_conformance.simulated import collection_of
from multiclouddb_conformance.sink_harness import (
    ADDRESS,
    NOW,
    SinkHarness,
    documents,
    events,
    expected,
    key_of,
    page,
    read,
    refused,
    rows,
    tombstones,
)
from multiclouddb_tables import column_values
from multiclouddb_tables.contract import Fix
from multiclouddb_verify import DifferenceKind, verify

__all__ = ["TestFixed", "TestJudged", "TestRead"]


class TestRead:
    """Tests what `verify` reads."""

    def test_some_keys(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}), ("b", 2, None), ("c", 3, {}))))
        assert read(sink, [key_of("a"), key_of("b"), key_of("none")]).keys() == {key_of("a"), key_of("b")}
        assert read(sink, []) == {}
        assert sink.target.position() is None

    def test_many_rows_in_one_version(self, sink: SinkHarness) -> None:
        sink.merge(page(events(*((f"k{n}", 1, {"n": 1}) for n in range(9_000)))))
        batches = iter(sink.target.rows())
        first = next(batches)
        sink.merge(page(events(*((f"k{n}", 2, {"n": 2}) for n in range(9_000)))))
        assert {row["order_key"] for each in [first, *batches] for row in each.to_pylist()} == {"000001"}

    def test_a_table_that_does_not_exist(self, sink: SinkHarness) -> None:
        with pytest.raises(MulticloudDbError) as caught:
            list(sink.target.rows())
        check_refusal(caught.value, ErrorCategory.NOT_FOUND)


class TestFixed:
    """Tests that a repair never overwrites what it has not seen."""

    def test_compares_and_sets(self, sink: SinkHarness) -> None:
        sink.merge(page(events(*((name, 1, {"n": 1}) for name in ("seen", "moved", "gone")))))
        sink.merge(page(events(("moved", 2, {"n": 2}), ("dead", 2, None))))

        def fix(name: str, seen: str | None, text: str | None) -> Fix:
            return Fix(key_of(name), () if seen is None else (seen,), "000001~", text, None, NOW)

        one = "000001"
        fixes = [fix("seen", one, '{"n":"fixed"}'), fix("moved", one, "{}"), fix("gone", one, None)]
        fixes += [fix("new", None, '{"n":"new"}'), fix("never", None, None), fix("dead", None, "{}")]
        assert sink.target.fix(fixes, expected(sink)) == 3
        assert documents(sink) == {"seen": {"n": "fixed"}, "moved": {"n": 2}, "new": {"n": "new"}}
        assert tombstones(sink) == {"gone": "000001~", "dead": "000002"}
        assert sink.target.fix(fixes, expected(sink)) == 0
        sink.merge(page(events(("seen", 3, {"n": 3}), ("gone", 1, {"n": 1}))))
        assert documents(sink)["seen"] == {"n": 3}
        assert sink.target.fix([], expected(sink)) == 0

    def test_columns_of_its_own_need_values_before_the_first_repair(self, sink: SinkHarness) -> None:
        sink.merge(rows(("a", 1, {"n": 1})).append_column("total", pa.array([1.5])))
        fix = Fix(key_of("a"), ("000001",), "000001~", '{"n":2}', None, NOW)
        for fixes in ([], [fix]):
            assert "total" in refused(sink.target.fix, fixes, expected(sink)).message
        assert documents(sink) == {"a": {"n": 1}}
        assert sink.target.fix([attrs.evolve(fix, columns={"total": 2.5})], expected(sink)) == 1

    def test_a_row_is_removed_only_beside_the_one_that_was_seen(self, sink: SinkHarness) -> None:
        sink.merge(page(events(("a", 1, {}), ("b", 2, {}), ("c", 3, {}))))
        sink.merge(page(events(*((f"other {name}", 9, {}) for name in ("a", "b", "c", "d", "e")))))

        def removal(name: str, beside: str | None, seen: str = "000009") -> Fix:
            place = None if beside is None else (key_of(name), beside)
            key = key_of(f"other {name}")
            return Fix(key, (seen,), "", None, None, NOW, removes=True, beside=place)

        moved = [removal("b", "000001"), removal("c", "000003", seen="000008"), removal("e", "000001")]
        assert sink.target.fix([removal("a", "000001"), removal("d", None), *moved], expected(sink)) == 2
        assert documents(sink).keys() == {"a", "b", "c", "other b", "other c", "other e"}
        assert sink.target.fix([removal("b", "000002"), removal("c", "000003")], expected(sink)) == 2
        assert documents(sink).keys() == {"a", "b", "c", "other e"}
        assert sink.target.fix([removal("b", "000002")], expected(sink)) == 0
        assert tombstones(sink) == {}


_WRONG: Final[Mapping[str, Callable[[Any], Any]]] = {
    "right": lambda document: document,
    "rounds a float": lambda document: {**document, "number": round(document["number"], 6)},
    "narrows a float": lambda document: {
        **document, "number": float(pa.scalar(document["number"], pa.float32()).as_py()),
    },
    "cuts a text": lambda document: {**document, "text": document["text"][:255]},
    "writes null": lambda document: {**document, "large": None},
    "leaves out": lambda document: {name: document[name] for name in ("number", "text")},
}  # fmt: skip
"""What a wrong writer makes of a document."""


_CONVERTED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "rounds a float": lambda value: round(value, 6) if isinstance(value, float) else value,
    "cuts a text": lambda value: value[:255] if isinstance(value, str) else value,
    "null for a number": lambda value: None if isinstance(value, Decimal) else value,
}
"""What a wrong rule makes of what a column holds."""


class TestJudged:
    """Tests that `verify` compares what is stored with the source, and not with what a writer makes of it."""

    @pytest.mark.parametrize("own", [False, True], ids=["documents", "columns"])
    def test_a_wrong_conversion_is_found(
        self, sink: SinkHarness, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        document = {"number": 0.1 + 0.2, "text": "é" * 300, "large": 2**70}
        kinds = {"number": pa.float64(), "text": pa.string(), "large": pa.decimal128(38, 0)}
        # The clock of the simulation is exact.
        monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)
        with collection_of(ADDRESS, dict.fromkeys(_WRONG, document)) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            batch = pa.Table.from_batches([events_to_arrow(found.events)])
            written = [_WRONG[each.key["id"]](dict(each.new_item_state or {})) for each in found.events]
            if own:
                for name, kind in kinds.items():
                    batch = batch.append_column(name, pa.array([each.get(name) for each in written], kind))
            else:
                texts = pa.array([encode_json(each).decode() for each in written])
                batch = batch.set_column(batch.column_names.index("new_item_state"), "new_item_state", texts)
            sink.merge(batch)
            report = verify(
                client, ADDRESS, sink.target,
                position=found.continuation_token, state=tmp_path / "verify", patience_seconds=30.0,
                transform=(lambda given: dict(given)) if own else None,
            )  # fmt: skip
        assert {each.key: each.kind for each in report.differences} == {
            key_of(name): DifferenceKind.STALE for name in _WRONG if name != "right"
        }
        assert report.counts.equal == 1

    @pytest.mark.parametrize("wrong", _CONVERTED)
    def test_a_wrong_rule_of_what_a_column_holds_is_found(
        self, sink: SinkHarness, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A repair writes what the rule says, so what is stored is read without it."""
        document = {"number": 0.1 + 0.2, "text": "é" * 300, "large": 2**70}
        kinds = {"number": pa.float64(), "text": pa.string(), "large": pa.decimal128(38, 0)}
        held = column_values._as_stored
        monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)
        with collection_of(ADDRESS, {"a": document}) as client:
            found = client.read_changes(ChangeFeedRequest(ADDRESS, Beginning()))
            batch = pa.Table.from_batches([events_to_arrow(found.events)])
            for name, kind in kinds.items():
                batch = batch.append_column(name, pa.array([document[name]], kind))
            sink.merge(batch)
            monkeypatch.setattr(column_values, "_as_stored", lambda *given: _CONVERTED[wrong](held(*given)))
            report = verify(
                client, ADDRESS, sink.target,
                position=found.continuation_token, state=tmp_path / "verify", patience_seconds=30.0,
                transform=lambda given: dict(given),
            )  # fmt: skip
        assert [each.kind for each in report.differences] == [DifferenceKind.STALE]
