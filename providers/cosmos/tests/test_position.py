"""Tests positions, ranges and the order of changes within one LSN (logical sequence number)."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import ResourceAddress
from multiclouddb_cosmos.position import KeyRange, Place, RangeMap, compare, cursor_of, place_of, range_of
from multiclouddb_cosmos.records import View, place_after, records_of
from multiclouddb_cosmos.snapshots import Scan, cut_segments, is_scan, plan_scan, scan_of
from multiclouddb_spi import InvalidCursor, Seed

lsns = st.integers(0, 2**62 - 1)
inners = st.text("0123456789abcdef", min_size=24, max_size=32)
places = st.builds(Place, lsns, st.none() | st.integers(0, 2**31)) | st.builds(
    Place, st.integers(1, 2**62 - 1), st.integers(0, 2**31), inners
)
EDGES = [f"{number:02X}" for number in range(12)]
bounds = st.sampled_from(EDGES)
VIEW = View(ResourceAddress("shop", "orders"), "p", (("pk",),))


def change(lsn, pk, kind="create", item_id="1", etag="e", previous=None):
    metadata = {"operationType": kind, "lsn": lsn, "crts": 5}
    if previous is not None:
        metadata["previousImageLSN"] = previous
    if kind == "delete":
        return {"current": {}, "metadata": {**metadata, "id": item_id, "partitionKey": {"pk": pk}}}
    return {"current": {"id": item_id, "pk": pk, "_etag": etag}, "metadata": metadata}


class TestPlaces:
    @given(places)
    def test_a_cursor_is_read_back(self, place):
        assert place_of(cursor_of(place)) == place

    @given(places, places)
    def test_they_are_ordered(self, a, b):
        assert compare(a, b) == -compare(b, a)
        assert compare(a, a) == 0

    def test_inside_an_lsn_lies_before_its_end(self):
        begin, inside, end = Place(6), Place(7, None, "a" * 24), Place(7)
        assert compare(begin, inside) == compare(inside, end) == -1
        assert inside.etag == 6

    @pytest.mark.parametrize(
        "cursor",
        [None, "x", -1, 2**62, {}, [], [[]], [True], [-1], [2**62], ["1"], [1, -1], [1, 2, 3], [1, 2, ""],
         [1, None, "é"], [1, 2, "a" * 65], [1, 2, "a", 4], [1, 2, None], [1, 1.5]],
    )  # fmt: skip
    def test_what_nobody_made_is_refused(self, cursor):
        with pytest.raises(InvalidCursor):
            place_of(cursor)


class TestScans:
    @given(
        st.builds(Scan, st.just("abc"), lsns, st.integers(0, 2**31), st.none() | st.integers(0, 9), places)
    )
    def test_a_cursor_is_read_back(self, scan):
        place = Place(scan.place.lsn, None, scan.place.inner)
        assert scan_of(scan.cursor) == Scan(scan.plan_id, scan.bound, scan.moment, scan.since, place)
        assert is_scan(scan.cursor)

    @pytest.mark.parametrize(
        "cursor",
        [
            None,
            1,
            [],
            ["a"],
            ["a", 1, 2, 3],
            ["", 1, 2, None, 3],
            ["a", -1, 2, None, 3],
            ["a", 1, 2, None, []],
        ],
    )
    def test_what_nobody_made_is_refused(self, cursor):
        with pytest.raises(InvalidCursor):
            scan_of(cursor)

    @pytest.mark.parametrize(
        "cursor",
        [
            None,
            [],
            ["a", 1, None, None],
            ["a", 1, None, [[1, 2]]],
            ["a", 1, None, [["x", 2]]],
            ["a", -1, None, [["-FF", 2]]],
        ],
    )
    def test_a_plan_that_nobody_made_is_refused(self, cursor):
        with pytest.raises(InvalidCursor):
            cut_segments(cursor, 1)

    def test_a_scan_is_as_old_as_its_oldest_start(self):
        plan = plan_scan([Seed("-1F", (), [7, 9]), Seed("1F-FF", (), [8, 5])], None)
        assert plan.moment == datetime.fromtimestamp(5, UTC)

    def test_a_plan_is_cut_repeatably(self):
        plan = ["abc", 5, None, [["-1F", 7], ["1F-FF", 9]]]
        (first,), rest = cut_segments(plan, 1)
        (second,), none = cut_segments(rest, 8)
        assert none is None
        assert cut_segments(plan, 9)[0] == [first, second]
        assert scan_of(second.cursor).bound == 9


class TestRanges:
    @pytest.mark.parametrize(
        "text", ["", "-", "FF-", "1F", "2F-1F", "1F-1F", "x-FF", "1f-FF", "-FF ", "1F-2F-3F"]
    )
    def test_what_is_no_range(self, text):
        assert range_of(text) is None

    def test_an_id_is_read_back(self):
        for each in (KeyRange("", "FF"), KeyRange("1F", "2F")):
            assert range_of(each.partition_id) == each

    def test_a_range_is_cut_where_partitions_end(self):
        found = RangeMap([KeyRange("20", "FF"), KeyRange("", "20")])
        assert found.cut(KeyRange("10", "30")) == [KeyRange("10", "20"), KeyRange("20", "30")]
        assert found.cut(KeyRange("20", "FF")) == [KeyRange("20", "FF")]
        assert found.cut(KeyRange("05", "20")) == [KeyRange("05", "20")]


class TestInsideOneLsn:
    def test_the_order_does_not_depend_on_how_they_came(self):
        items = [change(7, f"k{number}") for number in range(8)]
        first = records_of(items, Place(6), VIEW)
        second = records_of(items[::-1], Place(6), VIEW)
        assert first.items == second.items

    @pytest.mark.parametrize("count", range(1, 8))
    def test_a_page_that_ends_there_is_resumed_exactly(self, count):
        items = [change(7, f"k{number}") for number in range(8)] + [change(8, "x")]
        records = records_of(items, Place(6), VIEW)
        place = place_after(records, count)
        assert place.inner is not None
        rest = records_of(items[::-1], place, VIEW)
        assert [*records.items[:count], *rest.items] == records.items

    def test_a_child_has_its_part_of_what_is_left(self):
        """A split divides the changes of one LSN between the children. Both children resume after the last
        delivered change."""
        items = [change(7, f"k{number}") for number in range(9)]
        records = records_of(items, Place(6), VIEW)
        place = place_after(records, 4)
        halves = [records_of(items[start::2], place, VIEW).items for start in (0, 1)]
        assert sorted(map(str, halves[0] + halves[1])) == sorted(map(str, records.items[4:]))

    def test_changes_of_one_key_can_have_happened_so(self):
        items = [
            change(7, "a", "create", etag="3"),
            change(7, "a", "replace", etag="1", previous=3),
            change(7, "a", "delete", previous=7),
        ]
        records = records_of(items, Place(6), VIEW)
        kinds = [item["metadata"]["operationType"] for item in records.items]
        assert kinds == ["replace", "delete", "create"]
        assert records.orders == sorted(set(records.orders))
        assert records.orders[-1] == records.order_key(2) == f"{7:020d}"

    def test_another_order_of_one_document_s_changes_repeats_and_loses_nothing(self):
        one, two, three = (change(7, "a", "replace", etag=str(n), previous=7) for n in range(3))
        records = records_of([one, two, three], Place(6), VIEW)
        place = place_after(records, 1)
        assert records_of([one, two, three], place, VIEW).items == [two, three]
        assert records_of([two, one, three], place, VIEW).items == [two, one, three]

    def test_an_item_without_an_lsn_is_never_taken_for_delivered(self):
        for place in (Place(6), Place(7, 5, "a" * 24)):
            records = records_of([{"current": {}}, change(8, "x")], place, VIEW)
            assert len(records) == 2
            assert records.items[0] == {"current": {}}
            assert compare(place_after(records, 1), place) == 1
