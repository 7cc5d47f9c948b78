"""Tests that a repair reads items whose ids no gateway can be asked for, and takes no refusal for absence."""

import json

import attrs
import pytest
from deltalake import DeltaTable

from multiclouddb_api import MulticloudDbKey, encode_json
from multiclouddb_cosmos_emulator.faults import Fail
from multiclouddb_verify import DeltaTarget, DifferenceKind, verify
from pyspark_multiclouddb import live_rows, merge_into_delta

from .world import ADDRESS

pytestmark = pytest.mark.usefixtures("hasty", "prompt")

PLAIN = ["plain", "another", "third"]
ODD = ["a/b", "c/", "tab\tid", "no#1", "end ", "p%20"]


@pytest.fixture
def sink(world, tmp_path):
    """Write the items, merge them into a table, and damage all of its rows."""
    consumer = world.consumer()
    for item_id in PLAIN + ODD:  # azure-cosmos checks the ids of items, but not those in a batch
        world.batch("p", ("upsert", ({"id": item_id, "pk": "p", "n": 1},)))
    page = consumer.read()
    merge_into_delta(page, None, tmp_path / "orders", None)
    while not page.idle:
        page = consumer.read()
        merge_into_delta(page, None, tmp_path / "orders", None)
    table = DeltaTable(tmp_path / "orders")
    table.update(updates={"new_item_state": """'{"n":2}'"""})
    table.delete(f"""key = '{key_of("c/")}' OR key = '{key_of("third")}'""")
    return page.continuation_token


def key_of(item_id):
    return encode_json({"pk": "p", "id": item_id}).decode()


def repaired(world, tmp_path, token):
    return verify(
        world.client(), ADDRESS, DeltaTarget(tmp_path / "orders"), position=token, repair=True,
        state=tmp_path / "state", patience_seconds=10.0,
    )  # fmt: skip


def rows(tmp_path):
    found = live_rows(tmp_path / "orders").read_all().to_pylist()
    return {row["key"]: json.loads(row["new_item_state"])["n"] for row in found}


def test_each_item_is_repaired_whatever_its_id_is(world, tmp_path, sink):
    report = repaired(world, tmp_path, sink)
    assert report.equal
    kinds = {
        key_of(each): DifferenceKind.MISSING if each in ("c/", "third") else DifferenceKind.STALE
        for each in PLAIN + ODD
    }
    assert {each.key: each.kind for each in report.repaired} == kinds
    assert rows(tmp_path) == {key_of(each): 1 for each in PLAIN + ODD}


def test_if_the_queries_are_refused_those_items_are_not_known_and_their_rows_stay(world, tmp_path, sink):
    world.server.faults.add(Fail(401), "QueryItems", times=None)
    report = repaired(world, tmp_path, sink)
    assert (report.equal, report.counts.differences) == (False, {})
    assert set(report.unsettled) == report.reasons.keys() == {key_of(each) for each in ODD}
    assert rows(tmp_path) == {key_of(each): 1 if each in PLAIN else 2 for each in PLAIN + ODD if each != "c/"}


class Late:
    """A client whose look-ups answer with an older version of each item, as a replica may."""

    def __init__(self, client):
        self.client = client
        self.read_changes, self.capabilities, self.config = (
            client.read_changes, client.capabilities, client.config,
        )  # fmt: skip

    def lookup(self, *arguments, **options):
        answers = self.client.lookup(*arguments, **options)
        return {
            key: answer and attrs.evolve(answer, new_item_state={"id": "old"})
            for key, answer in answers.items()
        }


def test_keys_are_compared_with_a_scan_because_a_look_up_may_lack_the_newest_writes(world, tmp_path, sink):
    DeltaTable(tmp_path / "orders").update(
        updates={"new_item_state": f"""'{json.dumps({"id": "plain", "pk": "p", "n": 1})}'"""},
        predicate=f"key = '{key_of('plain')}'",
    )
    before = rows(tmp_path)
    wanted = [MulticloudDbKey({"pk": "p", "id": each}) for each in ("plain", "another")]
    settings = {"position": sink, "keys": wanted, "state": tmp_path / "state"}
    report = verify(
        Late(world.client()), ADDRESS, DeltaTarget(tmp_path / "orders"), repair=True, patience_seconds=1.0,
        **settings,
    )  # fmt: skip
    assert report.counts.equal == 1
    assert report.counts.repaired == 0
    assert rows(tmp_path) == before
    report = verify(
        world.client(), ADDRESS, DeltaTarget(tmp_path / "orders"), repair=True, patience_seconds=10.0,
        **settings,
    )  # fmt: skip
    assert [each.key for each in report.repaired] == [key_of("another")]
    assert report.covered == "2 keys were compared, and no others"


def test_a_partition_key_is_compared_in_the_spelling_of_the_service(lone, tmp_path):
    consumer = lone.consumer()
    for number in (1, 10, 2):
        lone.container.upsert_item({"id": "a", "pk": number, "n": 1})
    consumer.until_idle()
    for page in consumer.pages:
        merge_into_delta(page, None, tmp_path / "orders", None)
    DeltaTable(tmp_path / "orders").update(updates={"new_item_state": """'{"n":2}'"""})
    report = verify(
        lone.client(), ADDRESS, DeltaTarget(tmp_path / "orders"), position=page.continuation_token,
        repair=True, state=tmp_path / "state", patience_seconds=10.0,
        partition_key=MulticloudDbKey({"pk": 1.0}),
    )  # fmt: skip
    assert [each.key for each in report.repaired] == ['{"pk":1,"id":"a"}']
    assert report.equal
