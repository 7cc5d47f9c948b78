"""Lives of a table whose mirror is killed again and again, in this process's children and on Spark.

Each turn is a process of its own, which gets SIGKILL before or after one of its steps, or at a random moment,
while its collection changes. The judge reads table and collection by their own drivers, and counts what the
scans have read in every process, Spark's too.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from multiclouddb_api import ResourceAddress, connect
from multiclouddb_api.set_aside import SetAsideFolder
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_mirror import destination_of, mirror, retry_set_aside
from multiclouddb_spi.continuation.token import decode_token
from multiclouddb_spi.segment import plan_id_of
from multiclouddb_spi.token_report import read_standings
from testing.seeds import in_soak

HERE = Path(__file__).parent
ORDERS = ResourceAddress("main", "orders")
KEYS = 60
MOST_READ = 30
"""How many rows a scan may read in a turn that are not in the table when it is killed: Spark reads some
segments at the same time."""
SECONDS = 400
"""For how long a turn may live. On a busy machine, Spark needs two minutes for a scan."""


class Life:
    """A collection, a table, and the processes that mirror the one into the other."""

    def __init__(self, folder, kind, server, seed):
        folder.mkdir()
        self.folder, self.kind, self.server, self.dice = folder, kind, server, random.Random(seed)
        self.store = EmbeddedStore(folder / "shop.db", durable=False)
        self.store.create_collection("orders", partitions=2)
        self.documents, self.log, self.number, self.turns = {}, [], 0, 0
        self.given, self.scanned, self.began = folder / "given", folder / "scanned", folder / "began"
        self.scanned.touch()
        self.may_refuse = False
        for number in range(KEYS):
            self.put(f"o-{number:02}", {"total": number})
        if kind == "postgres":
            self.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    @property
    def source(self):
        return f"embedded://{self.store.path}"

    @property
    def target(self):
        if self.kind == "delta":
            return f"delta:{self.folder}/table"
        return f"postgres:{self.server.dsn}#orders"

    @property
    def aside(self):
        return SetAsideFolder(self.folder / "aside")

    def sql(self, statement):
        with psycopg.connect(self.server.dsn, autocommit=True) as database:
            found = database.execute(statement)
            return found.fetchall() if found.description else None

    def put(self, key, document):
        self.documents[key] = document
        self.store.put("orders", key, document)

    def write(self):
        """Change the collection a little."""
        self.number += 1
        key = f"o-{self.dice.randrange(KEYS + 20):02}"
        chance = self.dice.random()
        if chance < 0.15 and key in self.documents:
            del self.documents[key]
            self.store.delete("orders", key)
        elif chance < 0.25 and self.may_refuse:
            self.put(key, {"total": 1000 + self.number, "bad": True})
        elif chance < 0.28 and len(self.store.partitions("orders")) < 6:
            self.store.split("orders", self.dice.choice(self.store.partitions("orders")).partition_id)
        else:
            self.put(key, {"total": 1000 + self.number})

    def refuse(self):
        """Let the table refuse bad documents from now on."""
        self.may_refuse = True
        if self.kind == "postgres":
            rule = "CHECK (new_item_state IS NULL OR new_item_state::text NOT LIKE '%bad%') NOT VALID"
            self.sql(f"ALTER TABLE orders ADD CONSTRAINT good {rule}")

    def accept(self):
        if self.may_refuse and self.kind == "postgres":
            self.sql("ALTER TABLE orders DROP CONSTRAINT good")
        self.may_refuse = False

    def turn(self, *, spark, dies_at=None, seconds=None, writes=True):
        """Run the mirror in a process that is killed at a step, or after some seconds; return its end."""
        self.turns += 1
        self.began.unlink(missing_ok=True)
        reads = len(self.reads())
        given = {
            "source": self.source, "target": self.target, "spark": spark, "dies_at": dies_at,
            "aside": str(self.aside.path), "refuses": self.may_refuse, "began": str(self.began),
            "pause": self.dice.choice([0.0, 0.0, 5.0]),
        }  # fmt: skip
        self.given.write_text(json.dumps(given))
        before = self.position()
        paths = os.pathsep.join([str(HERE / "counted"), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("a") as err:
            child = subprocess.Popen(
                [sys.executable, str(HERE / "life.py"), str(self.given)],
                env={**os.environ, "PYTHONPATH": paths, "SCANNED": str(self.scanned)},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            self.live(child, seconds, writes=writes)
        finally:
            if child.poll() is None:
                child.kill()
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # Spark's processes
            code = child.wait(SECONDS)
        lines = (self.folder / "out").read_text().splitlines()
        told = json.loads(lines[-1]) if lines and code != -signal.SIGKILL else None
        read = self.reads()[reads:]
        after = self.position()
        self.log.append(
            f"{'spark' if spark else 'plain'} dies_at={dies_at} seconds={seconds} pause={given['pause']} "
            f"ended {code} {told} read {Counter(plan for plan, _ in read)} {sum(n for _, n in read)} rows; "
            f"position {state(before)} -> {state(after)}"
        )
        self.judge_scan(before, read)
        return code, told

    def live(self, child, seconds, *, writes):
        """Write while a process lives, and kill it if it is time."""
        end = time.monotonic() + SECONDS
        dies = None
        while child.poll() is None:
            now = time.monotonic()
            assert now < end, self.story()
            if self.began.exists():
                dies = now + seconds if dies is None and seconds is not None else dies
                if writes and self.dice.random() < 0.3:
                    self.write()
            if dies is not None and now >= dies:
                os.kill(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.05)

    def position(self):
        table = destination_of(self.target)
        return None if table.found() is None else table.stored()

    def reads(self):
        """Return what scans have read so far: the name of the scan and the number of rows, in this order."""
        lines = self.scanned.read_text().splitlines()
        return [(line.split()[0], int(line.split()[1])) for line in lines]

    def judge_scan(self, before, read):
        """A scan that has begun is the only one; it reads no row again whose position is stored."""
        scans = {scan for scan, _ in read}
        if before is not None:
            assert scans <= scans_in(before), self.story()
        assert len(scans) <= 1, self.story()

    def story(self):
        return "\n".join([*self.log, (self.folder / "err").read_text()[-3000:]])

    def rows(self):
        """Return the documents of the live rows by key, read without this library."""
        if self.kind == "delta":
            found = DeltaTable(self.folder / "table").to_pyarrow_table().to_pylist()
            rows = [(r["key"], r["new_item_state"]) for r in found if r["_deleted_at"] is None]
        else:
            rows = self.sql("SELECT key, new_item_state::text FROM orders WHERE _deleted_at IS NULL")
        keys = [json.loads(key)["id"] for key, _ in rows]
        assert len(keys) == len(set(keys))
        return {json.loads(key)["id"]: json.loads(text) for key, text in rows}

    def end(self):
        """Let the mirror catch up, and judge the table."""
        code, told = self.turn(spark=False, writes=False)
        assert code == 0, self.story()
        assert told["caught_up"], self.story()
        rows, aside = self.rows(), self.keys_aside()
        wrong = {key for key in {*rows, *self.documents} if rows.get(key) != self.documents.get(key)}
        assert wrong <= aside, (wrong - aside, self.story())
        assert told["set_aside"] == len(aside)
        self.accept()
        with connect(self.source) as client:
            found = retry_set_aside(client, ORDERS, destination_of(self.target), self.aside)
            assert found.left == 0, (found, self.story())
            assert self.rows() == self.documents, self.story()
            assert mirror(client, ORDERS, self.target, prove=True).proof.equal, self.story()
        assert self.rows() == self.documents
        total = sum(count for _, count in self.reads())
        assert total <= KEYS + 20 + self.turns * MOST_READ, self.story()

    def keys_aside(self):
        files = self.aside.path.glob("*.json") if self.aside.path.is_dir() else ()
        return {json.loads(file.read_bytes())["key"]["id"] for file in files}

    def close(self):
        self.store.close()
        shutil.rmtree(self.folder / "table", ignore_errors=True)


def scans_in(token):
    """Return the scans of which a position has rows to read."""
    return {plan_id_of(each.partition_id) for each in read_standings(decode_token(token))} - {None}


def state(token):
    return "none" if token is None else f"in a scan {scans_in(token) or 'no more'}"


@pytest.fixture
def life(request, tmp_path):
    made = []

    def make(kind, seed):
        server = request.getfixturevalue("server") if kind == "postgres" else None
        made.append(Life(tmp_path / f"{kind}-{seed}", kind, server, seed))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_mirror_that_is_killed_in_and_out_of_spark_has_one_scan_and_an_equal_table(life):
    one = life("delta", 1)
    one.turn(spark=False, dies_at=17)
    assert one.turn(spark=True, dies_at=8)[0] == -signal.SIGKILL  # in a batch, before its rows are merged
    one.refuse()
    one.put("o-00", {"bad": True})
    one.end()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["delta", "postgres"])
@pytest.mark.parametrize("seed", in_soak(0, 5))
def test_a_life_with_kills_and_handovers(life, kind, seed):
    one = life(kind, seed)
    for number in range(one.dice.randrange(5, 9)):
        if number == 2 and one.position() is not None:
            one.refuse()
        for _ in range(one.dice.randrange(12)):
            one.write()
        how = one.dice.choice(["step", "step", "time", "ends"])
        code, told = one.turn(
            spark=one.dice.random() < 0.5,
            dies_at=one.dice.randrange(40) if how == "step" else None,
            seconds=one.dice.random() * 3 if how == "time" else None,
        )
        if code == 3:  # Spark sets nothing aside
            assert "the table refuses" in told["message"] or "good" in told["message"], one.story()
            assert one.may_refuse
        else:
            assert code in (0, 18, -signal.SIGKILL), one.story()
    one.end()
