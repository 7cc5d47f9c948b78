"""A document that cannot be decoded hides no other one: the rest is compared, and its verdict is open."""

import pytest
from deltalake import DeltaTable

from multiclouddb_api import MulticloudDbError, encode_json
from multiclouddb_verify import DifferenceKind, Outcome

from .tables import NAME, VALUES, Shop, key_of

DAMAGED = "o-000005"


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path) as shop:
        yield shop


@pytest.mark.parametrize("repair", [False, True])
def test_a_row_that_a_scan_cannot_decode(shop, repair):
    shop.damage("documents", DAMAGED)
    before = shop.documents()
    report = shop.verify(repair=repair)
    assert (report.outcome, report.exit_code) == (Outcome.UNSETTLED, 12)
    assert report.counts.equal == len(shop.names) - 1
    assert key_of(DAMAGED) in report.unsettled
    assert any("cannot be decoded" in reason for reason in report.reasons.values())
    assert report.verified_through is None
    assert shop.documents() == before


def test_a_row_that_neither_side_has_is_not_known_either(shop):
    """The sink has left it out, so nothing but the scan says that there is one."""
    DeltaTable(shop.table).delete(f"key = '{key_of(DAMAGED)}'")
    shop.damage("documents", DAMAGED)
    report = shop.verify()
    assert report.exit_code == 12
    assert report.counts.equal == len(shop.names) - 1


def test_other_differences_are_found_and_repaired(shop):
    faults = shop.plant(
        *shop.names[10:13], kinds=[DifferenceKind.STALE, DifferenceKind.MISSING, DifferenceKind.GHOST]
    )
    shop.damage("documents", DAMAGED)
    report = shop.verify()
    assert {each.key: each.kind for each in report.differences} == faults
    assert report.exit_code == 11
    report = shop.verify(repair=True)
    assert {each.key for each in report.repaired} == set(faults)
    assert report.exit_code == 12


def test_a_change_that_the_feed_cannot_decode(shop):
    """The sink stands before it; a row of a later change waits, and the damaged one is not known."""
    shop.store.put("orders", DAMAGED, {"n": "after"})
    shop.store.put("orders", DAMAGED, {"n": 5, "v": VALUES[5]})
    shop.damage("log", DAMAGED)
    report = shop.verify(patience_seconds=0.0)
    assert not report.equal
    assert report.exit_code == 12
    assert report.counts.equal >= len(shop.names) - 1
    assert any("cannot be decoded" in reason for reason in report.reasons.values())


@pytest.mark.parametrize("column", ["doc", "key"])
@pytest.mark.parametrize("name", [DAMAGED, "o-new"])
def test_a_key_whose_last_change_cannot_be_decoded_is_not_known_until_the_sink_has_passed_it(
    shop, name, column
):
    """The sink stands before the change; after it, the table lacks what the source has."""
    shop.store.put("orders", name, {"n": "after"})
    shop.damage("log", name, column)
    before = shop.documents()
    for repair in (False, True):
        report = shop.verify(repair=repair)
        assert (report.differences, report.exit_code) == ((), 12)
        assert "may be the key of a change" in report.reasons[key_of(name)]
    assert shop.documents() == before
    with pytest.raises(MulticloudDbError) as caught:
        shop.step()
    saved = shop.checkpoints.load(NAME)
    shop.checkpoints.save(NAME, caught.value.detail.skip_token, saved.version)
    shop.follow()
    assert shop.verify().exit_code == 11
    assert shop.verify(repair=True).exit_code == 0
    shop.check_equal()


def test_beside_a_change_of_a_known_key_all_other_differences_are_found_and_repaired(shop):
    faults = shop.plant(*shop.names[10:])
    shop.store.put("orders", DAMAGED, {"n": "after"})
    shop.damage("log", DAMAGED)
    report = shop.verify()
    assert {each.key: each.kind for each in report.differences} == faults
    assert report.exit_code == 11
    assert "may be the key of a change" in report.reasons[key_of(DAMAGED)]
    report = shop.verify(repair=True)
    assert {each.key for each in report.repaired} == set(faults)
    assert report.exit_code == 12
    assert shop.documents()[DAMAGED] != encode_json({"n": "after"}).decode()


def test_beside_a_change_of_an_unknown_key_only_what_no_change_explains_is_a_difference(shop):
    faults = shop.plant(*shop.names[10:])
    shop.store.put("orders", DAMAGED, {"n": "after"})
    shop.damage("log", DAMAGED, "key")
    report = shop.verify()
    assert report.exit_code == 11
    certain = {"unreadable", "duplicate", "blocked", "foreign"}
    assert {each.key: each.kind for each in report.differences} == {
        key: kind for key, kind in faults.items() if kind in certain
    }
    others = {key for key, kind in faults.items() if kind not in certain}
    assert report.reasons.keys() >= others | {key_of(DAMAGED)}


@pytest.mark.parametrize(("table", "column"), [("documents", "doc"), ("log", "doc"), ("log", "key")])
def test_a_resumed_run_knows_of_it_too(shop, table, column):
    shop.store.put("orders", DAMAGED, {"n": "after"})
    if table == "documents":
        shop.follow()
    shop.damage(table, DAMAGED, column)

    def die(progress):
        if progress.phase == "table":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.verify(on_progress=die)
    report = shop.verify(resume=True)
    assert report.exit_code == 12
    assert any("cannot be decoded" in reason for reason in report.reasons.values())
