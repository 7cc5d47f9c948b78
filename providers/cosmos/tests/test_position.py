"""Tests positions, ranges, and the order of changes within one LSN (logical sequence number)."""

from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import ResourceAddress, encode_json
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_cosmos.mapping import CosmosMapper, _texts
from multiclouddb_cosmos.position import (
    LIVE,
    KeyRange,
    Place,
    RangeMap,
    compare,
    cursor_of,
    place_of,
    range_of,
)
from multiclouddb_cosmos.records import (
    CosmosView,
    Records,
    is_after,
    is_of,
    key_of,
    lsn_of,
    picked,
    place_after,
    records_of,
    seconds_of,
)
from multiclouddb_cosmos.snapshots import cut_segments, place_in, plan_scan, text_of
from multiclouddb_spi import InvalidCursor, RecordFault, Scan, Seed

lsns = st.integers(0, 2**62 - 1)
inners = st.text("0123456789abcdef", min_size=24, max_size=32)
places = st.builds(Place, lsns, st.none() | st.integers(0, 2**31)) | st.builds(
    Place, st.integers(1, 2**62 - 1), st.integers(0, 2**31), inners
)
EDGES = [f"{number:02X}" for number in range(12)]
bounds = st.sampled_from(EDGES)
VIEW = CosmosView(ResourceAddress("shop", "orders"), "p", (("pk",),))
TWO = CosmosView(ResourceAddress("shop", "orders"), "p", (("tenant",), ("user", "id")))
MOST = 2**62 - 1
SCAN = Scan("0", datetime(2026, 1, 1, tzinfo=UTC))
LAST = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())


def change(lsn, pk, kind="create", item_id="1", etag="e", previous=None):
    metadata = {"operationType": kind, "lsn": lsn, "crts": 5}
    if previous is not None:
        metadata["previousImageLSN"] = previous
    if kind == "delete":
        return {"current": {}, "metadata": {**metadata, "id": item_id, "partitionKey": {"pk": pk}}}
    return {"current": {"id": item_id, "pk": pk, "_etag": etag}, "metadata": metadata}


class TestPlaces:
    @given(places, places)
    def test_a_cursor_is_read_back_and_places_are_ordered(self, a, b):
        assert place_of(cursor_of(a)) == a
        assert compare(a, b) == -compare(b, a)
        assert compare(a, a) == 0

    def test_inside_an_lsn_lies_before_its_end(self):
        begin, inside, end = Place(6), Place(7, None, "a" * 24), Place(7)
        assert compare(begin, inside) == compare(inside, end) == -1
        assert inside.etag == 6
        assert [Place(lsn, None, "a" * 24).etag for lsn in (0, 1, 2)] == [0, 0, 1]

    @pytest.mark.parametrize(
        ("seconds", "past", "since"),
        [(5, None, 5), (None, None, None), (None, LIVE, None), (None, 0, None), (None, 1, 1), (5, 9, 5)],
    )
    def test_later_changes_are_as_late_as_is_known(self, seconds, past, since):
        place = Place(7, seconds, None, past)
        assert place.since == since
        assert place_of(cursor_of(place)) == place

    @pytest.mark.parametrize("length", [1, 64])
    def test_an_inner_place_has_up_to_64_characters(self, length):
        place = Place(7, None, "a" * length)
        assert place_of(cursor_of(place)) == place

    @given(places)
    def test_a_position_in_a_scan_is_read_back(self, place):
        assert place_in(text_of(place)) == Place(place.lsn, None, place.inner)

    @pytest.mark.parametrize(
        ("read", "cursors"),
        [
            (place_of, [None, "x", -1, 2**62, {}, [], [[]], [True], [-1], [2**62], ["1"], [1, -1], [1, 2, 3],
                        [1, 2, ""], [1, None, "é"], [1, 2, "a" * 65], [1, 2, "a", 4, 5],
                        [1, 2, None, -2], [1, 2, None, True], [1, 2, "é", 0], [1, 2, None],
                        [1, 1.5], [1, LAST + 1], [1, None, None, LAST + 1]]),
            (place_in, ["", "x", "-1", ":a", "1:", "²", "9" * 5000, str(2**62), "1:é", "1:" + "a" * 65]),
            (lambda rest: cut_segments(SCAN, rest, 1),
             [None, "x", 1, {}, [], [1], [[1, 2]], [["x", 2]], [["-FF", -2]], [["-FF", 2], ["x", 2]]]),
        ],
        ids=["place", "scan", "plan"],
    )  # fmt: skip
    def test_what_nobody_made_is_refused(self, read, cursors):
        for cursor in cursors:
            with pytest.raises(InvalidCursor):
                pytest.fail(f"{cursor!r} is {read(cursor)}")

    def test_a_scan_is_as_old_as_its_oldest_start(self):
        plan = plan_scan([Seed("-1F", (), [7, 9]), Seed("1F-FF", (), [8, 5])], None)
        assert plan.scan.moment == datetime.fromtimestamp(5, UTC)

    def test_a_plan_is_cut_repeatably(self):
        plan = [["-1F", 7], ["1F-FF", 9]]
        (first,), rest = cut_segments(SCAN, plan, 1)
        (second,), none = cut_segments(SCAN, rest, 8)
        assert none is None
        assert cut_segments(SCAN, plan, 9)[0] == [first, second]
        assert (second.name, second.last) == ("1F-FF", "9")


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

    @pytest.mark.parametrize(
        ("low", "holder"),
        [("", "10"), ("05", "10"), ("10", "10"), ("1F", "10"), ("20", "20"), ("3F", "30"), ("E0", "30")],
    )
    def test_the_partition_where_a_range_begins_holds_it(self, low, holder):
        found = RangeMap([KeyRange("20", "30"), KeyRange("30", "FF"), KeyRange("10", "20")])
        assert found.holder(KeyRange(low, "FF")).low == holder

    @pytest.mark.parametrize(("low", "high"), [("10", "18"), ("12", "18"), ("12", "20")])
    def test_where_no_partition_is_known_there_is_none(self, low, high):
        assert RangeMap([KeyRange("20", "FF"), KeyRange("", "10")]).cut(KeyRange(low, high)) == []
        assert RangeMap([KeyRange("20", "40"), KeyRange("40", "FF")]).cut(KeyRange(low, "30"))[0].low == "20"


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
        assert place_after(records, 8).inner is None  # the LSN is complete

    def test_only_a_delete_that_says_so_is_by_expiry(self):
        items = [change(7 + number, "a", "delete") for number in range(3)]
        items[0]["metadata"]["timeToLiveExpired"], items[1]["metadata"]["timeToLiveExpired"] = True, False
        records = records_of(items, Place(6), VIEW)
        assert [event.by_expiry for event in CosmosMapper(VIEW).events(records, 0, 3)] == [True, False, False]

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
        assert [records.number(index) for index in range(3)] == [0, 1, 2]
        assert records.orders == sorted(set(records.orders))
        assert records.orders[-1] == records.order_key(2) == f"{7:020d}"

    @pytest.mark.parametrize("turned", [False, True])
    @pytest.mark.parametrize("none", [None, 0])
    def test_a_create_has_no_earlier_version(self, none, turned):
        """Azure/azure-webjobs-sdk-extensions PR 972: there, a create's `previousImageLSN` is 0."""
        items = [change(7, "a", "create", etag="1", previous=none)]
        items += [change(7, "a", "replace", etag=etag, previous=7) for etag in "23"]
        records = records_of(items[::-1] if turned else items, Place(6), VIEW)
        assert records.items[0] == items[0]
        again = [change(7, "a", "delete", previous=3), items[0]]
        assert records_of(again[::-1] if turned else again, Place(6), VIEW).items == again

    @pytest.mark.parametrize("quote", ['"', ""])
    def test_versions_have_ids_of_their_own_whatever_the_form_of_an_etag(self, quote):
        """Microsoft Learn, Change feed modes: the format of `_etag` is internal, and can change anytime."""
        items = [change(7, "a", "replace", etag=f"{quote}{etag}{quote}", previous=7) for etag in ("1a", "1b")]
        for item in items:
            item["current"].update(_rid="r", _ts=5)
        records = records_of(items, Place(6), VIEW)
        ids = [event.event_id for event in CosmosMapper(VIEW).events(records, 0, 2)]
        assert ids == ["7:replace:r:1a", "7:replace:r:1b"]

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

    def test_so_is_one_with_an_lsn_below_zero(self):
        records = records_of([change(-1, "x"), change(8, "y")], Place(6), VIEW)
        assert records.lsns == [7, 8]

    def test_the_position_after_it_lies_before_the_next_lsn_or_at_the_page_s_end(self):
        """Before that, it would be sent and skipped again and again."""
        records = records_of([{"current": {}}, change(12, "x"), {"current": {}}], Place(6), VIEW, reached=20)
        assert [place_after(records, count).lsn for count in (1, 2, 3)] == [11, 12, 20]


class TestPartOfAKey:
    """A feed of one partition key reads a whole range and keeps only the changes of that key."""

    @pytest.mark.parametrize("value", ["a", 1, True, False, None])
    def test_an_item_with_the_key_is_kept(self, value):
        assert is_of(change(7, value), VIEW, [value])

    @pytest.mark.parametrize(("value", "wanted"), [("b", "a"), (True, 1), (1, True), (0, False), (None, "a")])
    def test_any_other_is_not(self, value, wanted):
        assert not is_of(change(7, value), VIEW, [wanted])

    def test_the_first_components_are_enough(self):
        item = change(7, "x")
        item["current"] |= {"tenant": "t", "user": {"id": 4}}
        assert is_of(item, TWO, ["t"])
        assert is_of(item, TWO, ["t", 4])
        assert not is_of(item, TWO, ["t", 5])
        assert not is_of(item, TWO, ["u"])

    @pytest.mark.parametrize(
        "damaged", [None, {}, {"metadata": {}}, {"metadata": {"operationType": "create"}}]
    )
    def test_a_damaged_one_is_kept_because_nobody_knows_whose_it_is(self, damaged):
        """The damaged item is reported as a record that cannot be read.

        If the item were left out, its change would be lost silently.
        """
        assert is_of(damaged, VIEW, ["a"])


class TestPart:
    @pytest.mark.parametrize("placed", [False, True])
    @pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 4), (2, None), (5, 5)])
    def test_it_has_the_records_between_two_places_with_their_positions(self, placed, start, stop):
        items = [change(lsn, f"k{lsn}") for lsn in range(7, 12)]
        records = records_of(items, Place(6), VIEW, placed=placed)
        part = records.part(start, stop)
        assert part.items == items[start:stop]
        indexes = range(len(items))[start:stop]
        assert [part.order(index) for index in range(len(part))] == [records.order(i) for i in indexes]
        keys = [records.order_key(index) for index in indexes]
        assert [part.order_key(index) for index in range(len(part))] == keys


BARE = attrs.evolve(VIEW, usual="replace")


def latest(lsn, **values):
    """Return an item of the feed of latest versions."""
    system = {"_rid": "r", "_self": "s", "_etag": '"e"', "_attachments": "a", "_ts": 5, "_lsn": lsn}
    return {"id": "x", "pk": "a", **values, **system}


class TestDocuments:
    def test_arrow_has_what_events_have(self):
        """Also if a property is missing, is damaged, or needs another form of JSON."""
        items = [latest(7), latest(8, n=2**70), latest(9, v={"$x": None}), latest(10, pk=1.0), latest(11)]
        del items[-1]["_self"], items[-1]["pk"]
        for view in (BARE, attrs.evolve(BARE, marker=("v",)), attrs.evolve(BARE, native=True)):
            records = records_of([dict(item) for item in items], Place(6, None, None, 0), view)
            mapper = CosmosMapper(view)
            if view.marker:
                with pytest.raises(RecordFault, match="/v"):
                    mapper.arrow(records, 0, 5)
                records = records.chosen([0, 1, 3, 4])
            events = mapper.events(records, 0, len(records))
            assert mapper.arrow(records, 0, len(records)).to_pylist() == events_to_arrow(events).to_pylist()
            for event, item in zip(events, [items[index - 7] for index in records.lsns], strict=True):
                assert event.native == (item if view.native else None)
                assert event.new_item_state == {n: item[n] for n in item if n[0] != "_"}

    @pytest.mark.parametrize("damage", [{"id": None}, {"text": "\ud800"}], ids=["id", "text"])
    @pytest.mark.parametrize("lost", [None, "_rid", "_etag", "_ts"])
    def test_a_damaged_item_is_named_and_can_be_skipped(self, damage, lost):
        items = [latest(7), latest(8, **({} if lost else damage)), latest(9)]
        if lost:
            del items[1][lost]
        records = records_of(items, Place(6, None, None, 0), BARE)
        mapper = CosmosMapper(BARE)
        with pytest.raises(RecordFault) as caught:
            mapper.arrow(records, 0, 3)
        assert (caught.value.index, caught.value.skip_cursor) == (1, [8, None, None, 0])
        assert len(mapper.events(records, 0, 1)) == len(mapper.arrow(records, 2, 3)) == 1

    def test_a_key_may_be_the_services_own_property(self):
        item = {**latest(7), "_attachments": True}
        for paths, marker in [((("_etag",),), ()), (VIEW.paths, ("_attachments",))]:
            view = attrs.evolve(BARE, paths=paths, marker=marker)
            records = records_of([dict(item)], Place(6, None, None, 0), view)
            (event,) = CosmosMapper(view).events(records, 0, 1)
            key = {path[0]: item[path[0]] for path in paths}
            assert event.key.components == {**key, "id": "x"}
            assert (event.old_item_state if marker else event.new_item_state) == {"id": "x", "pk": "a"}


def test_records_of_several_parts_keep_the_mode_of_their_position():
    """A part whose partition was just split has no page yet."""
    part = records_of([latest(7)], Place(6, None, None, 0), BARE, placed=True)
    found = picked([Records([], []), part], [(1, 0)])
    assert place_after(found, 1) == Place(7, None, None, 0)


@pytest.mark.parametrize(
    ("time", "seconds"), [(5, 5), (0, 0), (-1, None), (LAST, LAST), (LAST + 1, None), ("5", None)]
)
def test_only_a_possible_time_is_the_positions(time, seconds):
    """A position that is read live has the time of its last change."""
    bare = records_of([{**latest(7), "_ts": time}], Place(6, None, None, LIVE), BARE)
    item = change(7, "a")
    item["metadata"]["crts"] = time
    for records in (bare, records_of([item], Place(6), VIEW)):
        place = place_after(records, 1)
        assert place.seconds == records.seconds(0) == seconds
        assert place_of(cursor_of(place)) == place


class TestPlacesInTokens:
    """A token from an older release must stay valid, so these texts must not change."""

    def test_of_damaged_items(self):
        items = [{"metadata": {"lsn": 7}}, {"metadata": {"lsn": 7}}, {"metadata": {"lsn": 8}}]
        records = records_of(items, Place(6), VIEW)
        assert records.inners == ["~000000", "~000001", "~000000"]

    def test_of_changes_of_one_document(self):
        items = [change(7, "a", etag="1"), change(7, "a", etag="2", kind="replace", previous=7)]
        inners = records_of(items, Place(6), VIEW).inners
        name = inners[0][:20]
        assert [inner[:24] for inner in inners] == [f"{name}0000", f"{name}0001"]
        versions = [blake2b(told, digest_size=4).hexdigest() for told in (b"1", b"12")]
        assert [inner[24:] for inner in inners] == versions
        alone = records_of([change(7, "a")], Place(6), VIEW, placed=True)
        assert alone.inners == [f"{name}0000"]


class TestAfter:
    @pytest.mark.parametrize(("number", "after"), [("0000", False), ("0001", False), ("0002", True)])
    def test_the_digest_of_the_versions_does_not_decide(self, number, after):
        """After a split, the service may send the changes of one document in another order."""
        place = Place(7, None, f"{'a' * 20}000177777777")
        for digest in ("00000000", "77777777", "ffffffff"):
            assert is_after(7, f"{'a' * 20}{number}{digest}", place) is after


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize(("lsn", "held"), [(MOST, MOST), (MOST + 1, 7), (-1, 7), (True, 7)])
def test_a_position_that_no_token_can_hold_counts_as_damaged(lsn, held, placed):
    records = records_of([change(lsn, "a")], Place(6), VIEW, placed=placed)
    assert records.lsns == [held]
    assert not placed or records.inner(0).startswith("~") is (lsn != held)
    place = place_after(records, 1)
    assert place_of(cursor_of(place)) == place


def test_the_key_of_a_delete_that_has_only_its_previous_version():
    change = {
        "previous": {"id": "1", "tenant": "a", "user": {"id": 7.0}},
        "metadata": {"operationType": "delete"},
    }
    assert key_of(change, TWO) == {TWO.names[0]: "a", TWO.names[1]: 7, "id": "1"}


@pytest.mark.parametrize(
    "key", [{"tenant": "a", "user/id": 7}, {"/tenant": "a", "/user/id": 7}, {"tenant": "a", "id": 7}]
)
def test_a_deletes_key_names_paths_in_several_ways(key):
    change = {"metadata": {"operationType": "delete", "id": "1", "partitionKey": key}}
    assert key_of(change, TWO) == {TWO.names[0]: "a", TWO.names[1]: 7, "id": "1"}


@pytest.mark.parametrize(
    ("value", "kept"), [(-7.0, -7), (2.0**53 - 1, 2**53 - 1), (2.0**53, 2.0**53), (0.5, 0.5), (True, True)]
)
def test_only_an_exact_whole_number_becomes_an_integer(value, kept):
    for kind in ("create", "delete"):
        found = key_of(change(7, value, kind), VIEW)["pk"]
        assert (found, type(found)) == (kept, type(kept))


@pytest.mark.parametrize(
    "number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 1e19, 0.1, 12345678901234567.0]
)
@pytest.mark.parametrize("more", [{}, {"$x": 1}, {"m": 2**64}])
def test_the_text_of_a_row_is_that_of_its_event(number, more):
    """`orjson` also writes integers that only an unsigned one of 64 bits can hold."""
    rows = [{"n": number, "s": "1234567890123456789"}, more]
    assert _texts(rows).to_pylist() == [encode_json(row).decode() for row in rows]


@pytest.mark.parametrize(
    ("told", "found"), [(0, 0), (2**62 - 1, 2**62 - 1), (2**62, None), (-1, None), (True, None), ("7", None)]
)
def test_an_lsn_is_a_whole_number_from_zero_on(told, found):
    assert lsn_of({"_lsn": told}, bare=True) == found
    assert lsn_of({"metadata": {"lsn": told}}, bare=False) == found


def test_the_text_of_a_row_does_not_depend_on_its_neighbours():
    """Otherwise a long integer would make a healthy row a damaged one."""
    deep: Any = 1
    for _ in range(230):  # more than `encode_json` writes
        deep = [deep]
    rows = [{"v": deep}, {"n": 2**60}, None, {"$x": 2**60}]
    assert _texts(rows).to_pylist() == [_texts([row]).to_pylist()[0] for row in rows]


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("item", [None, {}, {"metadata": None}, {"metadata": {}}])
def test_an_item_without_a_time_has_none(item, bare):
    """One of 1970 would be left out of a feed that begins at a later time."""
    assert seconds_of(item, bare=bare) is None
