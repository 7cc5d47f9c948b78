"""Tests which items of a page become records, and which positions tokens contain."""

from hashlib import blake2b

import pytest

from multiclouddb_api import ResourceAddress
from multiclouddb_cosmos.position import Place, cursor_of, place_of
from multiclouddb_cosmos.records import View, is_after, is_of, place_after, records_of

VIEW = View(ResourceAddress("shop", "orders"), "p", (("pk",),))
TWO = View(ResourceAddress("shop", "orders"), "p", (("tenant",), ("user", "id")))
MOST = 2**62 - 1


def change(lsn, pk, item_id="1", etag="e", kind="create", previous=None):
    metadata = {"operationType": kind, "lsn": lsn, "crts": 5}
    if previous is not None:
        metadata["previousImageLSN"] = previous
    return {"current": {"id": item_id, "pk": pk, "_etag": etag}, "metadata": metadata}


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
        assert [part.order_key(index) for index in range(len(part))] == [
            records.order_key(i) for i in indexes
        ]


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


class TestAfter:
    @pytest.mark.parametrize(("number", "after"), [("0000", False), ("0001", False), ("0002", True)])
    def test_the_digest_of_the_versions_does_not_decide(self, number, after):
        """After a split, the service may send the changes of one document in another order."""
        place = Place(7, None, f"{'a' * 20}000177777777")
        for digest in ("00000000", "77777777", "ffffffff"):
            assert is_after(7, f"{'a' * 20}{number}{digest}", place) is after


class TestLargestNumber:
    def test_it_is_a_position_that_a_token_can_hold(self):
        records = records_of([change(MOST, "a")], Place(6), VIEW)
        assert records.lsns == [MOST]
        place = place_after(records, 1)
        assert place_of(cursor_of(place)) == place

    def test_a_larger_one_counts_as_damaged(self):
        records = records_of([change(MOST + 1, "a")], Place(6), VIEW)
        assert records.lsns == [7]
        place = place_after(records, 1)
        assert place_of(cursor_of(place)) == place
