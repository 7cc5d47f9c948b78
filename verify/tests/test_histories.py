"""Histories of a store and a Delta table: runs that die, and what happens to both sides between two runs.

The model knows the store and the rows of the table, and shares no code with `verify`.
"""

import json
import random
import shutil

import attrs
import pytest
from deltalake import DeltaTable

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbError,
    NotKnown,
    encode_json,
)
from multiclouddb_embedded import Delete, Put
from multiclouddb_verify import DeltaTarget, Kind, Outcome, verify
from multiclouddb_verify.repair import _Plan
from multiclouddb_verify.sides import Sides
from multiclouddb_verify.state import State
from pyspark_multiclouddb import merge_into_delta

from .tables import Shop, key_of, plant

ODD = [
    "",
    " ",
    "a b",
    'say "x"',
    "back\\slash",
    "line\nend",
    "é",
    "e\u0301",
    "\u2028",
    "😀",
    "{}",
    "'",
    "%",
    "~",
]
SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed >= 4)) for seed in range(1000)]


class Killed(BaseException):
    """Raised to simulate the death of the process at this point."""


class ContradictionError(AssertionError):
    """Raised if a run says or does what the model contradicts."""


def check(is_right, *facts):
    if not is_right:
        raise ContradictionError(*facts)


class Refusing:
    """A client whose look-ups are refused, for some keys or for all."""

    def __init__(self, client, dice):
        self._client, self._dice, self.refuses = client, dice, "none"

    def __getattr__(self, name):
        return getattr(self._client, name)

    def lookup(self, address, keys, *arguments, **settings):
        if self.refuses == "all":
            raise MulticloudDbError("401", ErrorDetail(ErrorCategory.AUTHENTICATION_FAILED))
        found = self._client.lookup(address, keys, *arguments, **settings)
        if self.refuses == "some":
            odd = [key for key in keys if len(str(key.components["id"])) % 2]
            found = {**found, **{key: NotKnown("the service refuses this key") for key in odd}}
        return found


class History:
    """One random history.

    Args:
        folder: An empty folder.
        seed: Chooses what happens.
    """

    def __init__(self, folder, seed):
        self.folder, self.dice = folder, random.Random(f"history {seed}")
        self.shop = Shop(folder, 12)
        self.client = self.shop.client = Refusing(self.shop.client, self.dice)
        self.shop.store.batch("orders", [Put(name, {"n": -1}) for name in ODD])
        self.count, self.ghosts, self.copies = 0, 0, []
        self.follow()
        self.other = self.folder / "customers"
        address = self.shop.store.create_collection("customers", partitions=1)
        self.shop.store.batch("customers", [Put(f"o-{n:06d}", {"c": n}) for n in range(8)])
        request = ChangeFeedRequest(address, Beginning())
        for page in self.client.iterate_changes(request, until_idle=True).pages():
            merge_into_delta(page, None, self.other, None)

    def close(self):
        self.client.close()
        self.shop.store.close()

    # -- The model

    def truth(self):
        found = self.shop.store.scan("orders")
        return {encode_json(key.components).decode(): encode_json(value) for key, value in found}

    @staticmethod
    def rows(table):
        found = {}
        for row in DeltaTable(table).to_pyarrow_dataset().scanner(use_threads=False).to_table().to_pylist():
            found.setdefault(row["key"], []).append(row)
        return {key: sorted(map(repr, rows)) for key, rows in found.items()}, found

    def differing(self):
        """Return the keys whose rows are not those of the last position."""
        _, rows = self.rows(self.shop.table)
        wrong = set()
        for key in {*rows, *self.merged} - self.open:
            mine, document = rows.get(key, []), self.merged.get(key)
            is_live = bool(mine) and mine[0]["_deleted_at"] is None
            is_wrong = len(mine) > 1 or is_live != (document is not None)
            is_wrong |= any(row["order_key"] == "~" for row in mine)
            is_wrong |= encode_json(json.loads(key)).decode() != key
            if not is_wrong and is_live:
                is_wrong = (mine[0]["new_item_state"] or "").encode() != document
            if is_wrong:
                wrong.add(key)
        return wrong

    # -- What happens between two runs

    def follow(self):
        self.shop.follow()
        self.merged, self.open = self.truth(), set()

    def move(self):
        """Change the store; the sink follows, or not."""
        for name in self.dice.sample([*self.shop.names, *ODD, "new"], 3):
            self.count += 1
            gone = self.dice.random() < 0.3
            self.shop.store.batch("orders", [Delete(name) if gone else Put(name, {"n": self.count})])
            self.open.add(key_of(name))
        if self.dice.random() < 0.7:
            self.follow()

    def damage(self):
        _, rows = self.rows(self.shop.table)
        whole = [
            key
            for key, mine in rows.items()
            if len(mine) == 1 and mine[0]["_deleted_at"] is None and key in self.merged
        ]
        for key in self.dice.sample(sorted(set(whole) - self.open), 2):
            kind = self.dice.choice([*Kind])
            match kind:
                case Kind.GHOST:
                    self.ghosts += 1
                    plant(self.shop.table, key_of(f"ghost-{self.ghosts}"), kind)
                case Kind.FOREIGN:
                    plant(self.shop.table, key.replace(":", ": ", 1), Kind.GHOST)
                case _:
                    plant(self.shop.table, key, kind)

    def recreate_table(self):
        shutil.rmtree(self.shop.table)
        [checkpoint] = (self.folder / "checkpoints").glob("*.json")
        checkpoint.unlink()
        self.follow()

    def recreate_source(self):
        self.shop.store.drop_collection("orders")
        self.shop.store.create_collection("orders", partitions=2)
        self.shop.store.batch("orders", [Put(name, {"n": 0}) for name in self.shop.names[3:] + ODD])
        self.recreate_table()

    def copy_state(self):
        if (self.folder / "state").exists():
            self.copies.append(self.folder / f"copy-{len(self.copies)}")
            shutil.copytree(self.folder / "state", self.copies[-1])

    def restore_state(self):
        if self.copies:
            shutil.rmtree(self.folder / "state", ignore_errors=True)
            shutil.copytree(self.dice.choice(self.copies), self.folder / "state")

    # -- The runs

    def run(self, *, dies):
        dice = self.dice
        steps = dice.randint(1, 9) if dies else None
        settings = {"resume": dice.random() < 0.7, "repair": dice.random() < 0.5}
        settings |= {"sample": dice.choice([None, None, None, 2]), "force": dice.random() < 0.5}
        self.client.refuses = dice.choice(["none", "some", "all"])

        def progress(_):
            nonlocal steps
            if steps is not None:
                steps -= 1
                if not steps:
                    raise Killed

        before, expected = self.rows(self.shop.table)[0], self.differing()
        try:
            report = self.shop.verify(patience_seconds=0.2, on_progress=progress, **settings)
        except Killed:
            return
        except MulticloudDbError as error:
            check(
                self.client.refuses == "all" and error.category == ErrorCategory.AUTHENTICATION_FAILED, error
            )
            check(self.rows(self.shop.table)[0] == before, "a refused look-up has written")
            return
        finally:
            after = self.rows(self.shop.table)[0]
            left = self.differing()
            check(left <= expected, "a row was damaged", left - expected)
        self.judge(report, settings, before, after, expected, left)

    def judge(self, report, settings, before, after, expected, left):
        told = {each.key for each in report.differences}
        repaired = {each.key for each in report.repaired}
        check(told | repaired <= expected, "a false alarm", (told | repaired) - expected)
        check(told <= left, "a repaired row is told as different", told - left)
        changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        check(changed <= repaired and (settings["repair"] or not changed), "written", changed, repaired)
        if settings["sample"] is None:
            unknown = {*report.unsettled}
            check(left <= told | unknown, "not told", left - told - unknown)
            if report.outcome is Outcome.EQUAL:
                check(not left and not self.open, "a false equal", left, self.open)
            if self.client.refuses == "none":
                check(not unknown, "unsettled", unknown)
                check(not (settings["repair"] and left), "not repaired", left)

    def run_on_the_wrong_table(self):
        before = self.rows(self.other)[0]
        position = self.shop.checkpoints.load("sink").token
        try:
            verify(
                self.client, self.shop.address, DeltaTarget(self.other), position=position, repair=True,
                state=self.folder / "wrong", patience_seconds=0.2, force=True, adopt=True,
            )  # fmt: skip
        except MulticloudDbError:
            pass
        else:
            raise ContradictionError("the table of another collection was compared")
        finally:
            check(self.rows(self.other)[0] == before, "the table of another collection was written")

    def play(self):
        between = [self.move, self.damage, self.damage, self.recreate_table, self.recreate_source]
        between += [self.copy_state, self.restore_state, self.run_on_the_wrong_table]
        for _ in range(5):
            self.run(dies=self.dice.random() < 0.6)
            for action in self.dice.sample(between, 2):
                action()
        self.run(dies=False)


def play(folder, seed):
    folder = folder / str(seed)
    folder.mkdir(parents=True)
    history = History(folder, seed)
    try:
        history.play()
    finally:
        history.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_verdict_is_false_and_no_row_is_damaged(seed, tmp_path):
    play(tmp_path, seed)


# -- The model notices defects


def noticed(folder, lives=100):
    for seed in range(lives):
        try:
            play(folder, seed)
        except ContradictionError:
            return True
    return False


def test_a_resume_that_reads_the_old_table_is_noticed(tmp_path, monkeypatch):
    take_up, read_table = State._take_up, Sides.read_table

    def take_up_all(state):
        state._sql("UPDATE run SET side = 'old' WHERE side = 'target'")
        take_up(state)

    def read_old(sides):
        if sides.state.count("old"):
            sides.state._sql("UPDATE run SET side = 'target' WHERE side = 'old'")
        else:
            read_table(sides)

    monkeypatch.setattr(State, "_take_up", take_up_all)
    monkeypatch.setattr(Sides, "read_table", read_old)
    assert noticed(tmp_path)


def test_a_mark_that_is_ignored_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(Sides, "check_mark", lambda sides: None)
    assert noticed(tmp_path)


def test_an_absence_from_a_refusal_is_noticed(tmp_path, monkeypatch):
    def lookup(client, address, keys, *arguments, **settings):
        found = client._client.lookup(address, keys, *arguments, **settings)
        return found if client.refuses == "none" else dict.fromkeys(keys)

    row = _Plan._row

    def believes(plan, each, event):
        row(plan, attrs.evolve(each, expected=plan._digest(event)), event)

    monkeypatch.setattr(Refusing, "lookup", lookup)
    monkeypatch.setattr(_Plan, "_row", believes)
    assert noticed(tmp_path)
