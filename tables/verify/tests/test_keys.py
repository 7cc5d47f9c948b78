"""Tests that single keys, or those of one partition key, are compared and repaired, and no others."""

import json
import random

import pytest

from multiclouddb_api import Beginning, Capability, ChangeFeedRequest, ErrorCategory, MulticloudDbKey, connect
from multiclouddb_conformance.refusals import refusal
from multiclouddb_embedded import Delete, EmbeddedStore, Put
from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_tables.sqlite import SqliteTable, merge_into_sqlite
from multiclouddb_verify import DifferenceKind, verify, verify_every
from multiclouddb_verify.state import State
from testing.seeds import seeds

from .tables import Busy, Shop, key_of
from .test_lives import rough, smooth
from .worlds import World, found

INVALID = ErrorCategory.INVALID_REQUEST
SEEDS = seeds(12, 100)


def key(name):
    return MulticloudDbKey({"id": name})


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, 300) as made:
        yield made


class TestKeys:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_found_is_what_was_planted_in_these_keys(self, seed, tmp_path):
        # A row with another text of a key is not one of the rows of these keys.
        kinds = [kind for kind in DifferenceKind if kind is not DifferenceKind.FOREIGN]
        world = World(seed, behaviour=[smooth, rough][seed % 2](seed), kinds=kinds)
        names = [*world.reserved, *world.lively, "nowhere", *(f"g{number}" for number in range(12))]
        chosen = random.Random(seed).sample(names, 20)
        wanted = {name: kind for name, kind in world.faults.items() if name in map(key_of, chosen)}
        report = world.verify(tmp_path / "state", keys=list(map(key, chosen)))
        assert found(report) == wanted
        assert (report.verified_through, report.cost.rows) == (None, 0)
        assert report.covered.startswith("20 keys were compared, and no others")
        report = world.verify(tmp_path / "state", keys=list(map(key, chosen)), repair=True)
        assert report.counts.repaired == len(wanted)
        assert report.equal
        assert found(world.verify(tmp_path / "state")) == {
            name: kind for name, kind in world.faults.items() if name not in wanted
        }
        world.close()

    def test_only_their_rows_are_read_and_repaired_beside_the_sink(self, shop, monkeypatch):
        faults = shop.plant(*shop.names[:9])
        asked = []
        rows = DeltaTarget.rows

        def noted(target, keys=None, **options):
            asked.append(keys)
            return rows(target, keys, **options)

        names = [json.loads(each)["id"] for each in list(faults)[:2]] + ["nowhere"]
        with monkeypatch.context() as patch, Busy(shop, shop.names[200:]):
            patch.setattr(DeltaTarget, "rows", noted)
            report = shop.verify(keys=[*map(key, names)], repair=True)
        assert {each.key for each in report.repaired} == set(list(faults)[:2])
        assert report.counts.repaired == 2
        assert report.equal
        assert "neither side has 1 of them" in report.covered
        assert all(each is not None and {*each} <= {*map(key_of, names)} for each in asked)
        shop.follow()
        assert sum(shop.verify(state=None).counts.differences.values()) == len(faults) - 2

    def test_changes_of_these_keys_count_and_others_are_not_kept(self, shop, monkeypatch):
        kept = []
        add = State.add_changes

        def noted(state, changes, now):
            kept.extend(changes)
            return add(state, changes, now)

        monkeypatch.setattr(State, "add_changes", noted)
        position = shop.checkpoints.load("sink").token
        shop.store.batch("orders", [Put(name, {"n": "new"}) for name in shop.names[:50]])
        shop.store.batch("orders", [Delete(shop.names[1])])
        keys = [key(name) for name in shop.names[:2]]
        report = shop.verify(position=position, keys=keys, patience_seconds=0.0)
        assert {*report.behind} == {key_of(name) for name in shop.names[:2]}
        assert {change[1] for change in kept} == {key_of(name) for name in shop.names[:2]}
        shop.follow()
        assert shop.verify(keys=keys).equal

    def test_a_key_of_which_the_source_says_nothing_is_unsettled(self, shop):
        shop.damage("documents", shop.names[5])
        report = shop.verify(keys=[key(shop.names[5]), key(shop.names[6])])
        assert (report.unsettled, report.counts.equal) == ((key_of(shop.names[5]),), 1)
        assert report.exit_code == 12

    def test_refusals(self, shop, tmp_path):
        for settings, problem in [
            ({"keys": []}, "are no keys"),
            ({"keys": ["o-1"]}, "keys"),
            ({"keys": [key("a")], "sample": 2}, "together with sample"),
            ({"keys": [key("a")], "partition_key": key("a")}, "together with keys"),
            ({"keys": [key("a")], "record": True}, "whole table"),
            ({"partition_key": key("a"), "resume": True}, "whole table"),
        ]:
            refusal(INVALID, lambda s=settings: shop.verify(**s), problem)

    def test_a_comparison_that_is_left_over_stays(self, shop, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

        def stop(progress):
            if progress.phase == "compare":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            shop.verify(state=None, on_progress=stop)
        assert shop.verify(state=None, keys=[key(shop.names[0])]).left_over is None
        assert "is taken up" in shop.verify(state=None, resume=True).left_over


class TestPartitionKey:
    @pytest.fixture
    def store(self, tmp_path):
        with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
            store.create_collection("orders", partition_key=["customer"])
            for customer in ("c-1", "c-10", "c-2"):
                for order in range(3):
                    store.put("orders", {"customer": customer, "order": order}, {"n": order})
            yield store

    @pytest.fixture
    def table(self, store, tmp_path):
        path = tmp_path / "table.db"
        with connect(f"embedded://{store.path}") as client:
            changes = client.iterate_changes(ChangeFeedRequest("orders", Beginning()), until_idle=True)
            for page in changes.pages():
                merge_into_sqlite(page, None, path, "orders", None)
        self.token = page.continuation_token
        return path

    def damage(self, path, *keys):
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(path)) as database, database:
            for text in keys:
                update = "UPDATE orders SET new_item_state = '{}' WHERE key = ?"
                assert database.execute(update, (text,)).rowcount

    def verify(self, store, path, tmp_path, **settings):
        with connect(f"embedded://{store.path}") as client:
            return verify(
                client, "orders", SqliteTable(path, "orders"), position=self.token, state=tmp_path / "state",
                **settings,
            )  # fmt: skip

    def test_only_its_rows_are_compared_and_repaired(self, store, table, tmp_path):
        wrong, other = '{"customer":"c-1","order":1}', '{"customer":"c-10","order":1}'
        self.damage(table, wrong, other)
        mine = MulticloudDbKey({"customer": "c-1"})
        report = self.verify(store, table, tmp_path, partition_key=mine, repair=True)
        assert [each.key for each in report.repaired] == [wrong]
        assert (report.equal, report.cost.rows, report.counts.equal) == (True, 3, 3)
        assert report.verified_through is None
        assert report.covered == "only the keys of one partition key were compared"
        assert [each.key for each in self.verify(store, table, tmp_path).differences] == [other]
        nobody = self.verify(store, table, tmp_path, partition_key=MulticloudDbKey({"customer": "x"}))
        assert "the source has none" in nobody.covered

    def test_a_key_that_no_item_can_have_is_refused(self, store, table, tmp_path):
        keys = [MulticloudDbKey({"order": 1})]
        refusal(INVALID, lambda: self.verify(store, table, tmp_path, keys=keys), "keys", "cannot have")

    def test_is_refused_where_it_cannot_be_scanned(self, store, table, tmp_path):
        with connect(f"embedded://{store.path}?profile=dynamo") as client:
            assert not client.capabilities().is_supported(Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE)
            mine = MulticloudDbKey({"customer": "c-1"})
            settings = {"position": self.token, "state": tmp_path / "state", "partition_key": mine}
            refusal(
                ErrorCategory.UNSUPPORTED_CAPABILITY,
                lambda: verify(client, "orders", SqliteTable(table, "orders"), **settings),
            )


def test_passes_compare_every_row(shop, tmp_path):
    from datetime import timedelta

    every = timedelta(hours=1)
    for setting in ({"keys": [key("a")]}, {"partition_key": key("a")}):
        refusal(
            INVALID,
            lambda s=setting: verify_every(
                shop.client, shop.address, DeltaTarget(shop.table), every, state=tmp_path / "s", **s
            ),
            "every row is compared",
        )
