"""Tests behaviour that only the scripted server has, through the vendor's client."""

import socket
import threading
import time

import pytest
from google.api_core.exceptions import GoogleAPICallError, NotFound, ServiceUnavailable
from google.cloud import spanner

from multiclouddb_spanner_emulator import Habits, ScriptedSpanner, Write

from .native import Native, later, refused

TABLE = "CREATE TABLE t (id STRING(MAX) NOT NULL, n INT64, f FLOAT64, s STRING(MAX)) PRIMARY KEY (id)"
STREAM = "CREATE CHANGE STREAM s FOR t OPTIONS (value_capture_type = 'NEW_ROW')"
DAY = 86400


class World:
    """A server with one table, and the vendor's client."""

    def __init__(self, **habits):
        self.server = ScriptedSpanner(Habits(**habits))
        self.server.start()
        self.native = Native(self.server.host, TABLE, STREAM)
        self.start = self.native.now()

    @property
    def name(self):
        return self.native.database.name

    def put(self, *rows, columns=("id", "n")):
        with self.native.batch() as batch:
            batch.insert_or_update("t", columns, rows)

    def open(self):
        return self.server.open_partitions(self.name, "s")

    def read(self, token, start=None, end=None, **settings):
        return self.native.read("s", start or self.start, end or self.native.now(), token, **settings)

    def data(self, token, start=None, end=None):
        return [row[0][0] for row in self.read(token, start, end) if row[0]]

    def everything(self):
        return self.native.everything("s", self.start, self.native.now())


@pytest.fixture
def make():
    made = []

    def start(**habits):
        made.append(World(**habits))
        return made[-1]

    yield start
    for world in made:
        world.server.stop()


@pytest.fixture
def world(make):
    return make()


class TestPartitions:
    def test_a_split_names_children_where_they_begin(self, make):
        world = make(initial_partitions=1)
        (parent,) = world.open()
        world.put(("a", 1))
        children = world.server.split(parent, 3)
        world.put(("a", 2))
        *data, ending = world.read(parent)
        (start, sequence, named) = ending[2][0]
        assert len(data) == 1
        assert sequence == "00000000"
        assert named == [[child, [parent]] for child in children]
        after = [told for child in children for told in world.data(child, start)]
        assert [told[6][0][1] for told in after] == ['{"f":null,"n":"2","s":null}']

    def test_every_parent_of_a_merge_names_the_child_with_all_of_them(self, world):
        a, b = world.open()
        child = world.server.merge(a, b)
        for parent in (a, b):
            assert world.read(parent)[-1][2][0][2] == [[child, [a, b]]]
        assert world.open() == [child]

    def test_a_key_goes_on_in_a_descendant_unless_keys_move(self, make):
        for moves in (False, True):
            world = make(initial_partitions=4, moves_keys=moves)
            world.put(*((f"k{number}", 1) for number in range(40)))
            homes = {each.token: each.records for each in world.server.partitions(world.name, "s")}
            first, *others = world.open()
            world.server.split(first)
            world.put(*((f"k{number}", 2) for number in range(40)))
            told = {token: world.data(token) for token in others}
            before = {token: {mod[0] for each in told[token][:1] for mod in each[6]} for token in others}
            after = {token: {mod[0] for each in told[token][1:] for mod in each[6]} for token in others}
            assert (before == after) is not moves
            assert all(homes.values())

    @pytest.mark.parametrize(
        ("habits", "records"),
        [({}, [2]), ({"children_per_record": 1}, [1, 1]), ({"repeat_children": 1}, [2, 2])],
    )
    def test_children_are_announced_as_the_habits_say(self, make, habits, records):
        world = make(initial_partitions=1, **habits)
        (parent,) = world.open()
        world.server.split(parent)
        assert [len(row[2][0][2]) for row in world.read(parent) if row[2]] == records

    def test_children_are_named_in_reverse(self, make):
        world = make(initial_partitions=1, children_first=True)
        (parent,) = world.open()
        children = world.server.split(parent)
        assert [child for child, _ in world.read(parent)[-1][2][0][2]] == children[::-1]
        assert world.native.tokens("s", world.native.now()) == children[::-1]

    @pytest.mark.parametrize("silent", [1, 2])
    def test_a_query_can_end_without_naming_the_children(self, make, silent):
        world = make(initial_partitions=1, silent_ends=silent)
        (parent,) = world.open()
        children = world.server.split(parent)
        for _ in range(silent):
            assert world.read(parent) == []
        assert {child for child, _ in world.read(parent)[-1][2][0][2]} == set(children)

    def test_the_end_of_a_partition_can_be_told_late(self, make):
        world = make(initial_partitions=1)
        (parent,) = world.open()
        world.server.split(parent)
        world.server.hide_end(parent)
        status, _ = refused(lambda: world.read(parent, timeout=0.5))
        assert status == "DEADLINE_EXCEEDED"
        world.server.hide_end(parent, hidden=False)
        assert world.read(parent)[-1][2]

    def test_a_stream_may_have_a_thousand_partitions(self, make):
        world = make(initial_partitions=1000)
        assert len(set(world.native.tokens("s", world.start))) == 1000

    def test_what_is_not_open_cannot_be_reshaped(self, world):
        a, b = world.open()
        world.server.move(a)
        for tokens in ([a], [b, b], ["unknown"]):
            with pytest.raises(ValueError, match=r"open partitions|no change stream"):
                world.server.merge(*tokens)


class TestTime:
    def test_records_fall_out_of_retention(self, world):
        world.put(("a", 1))
        (token, *_) = world.open()
        world.server.advance(2 * DAY)
        status, message = refused(lambda: world.read(token))
        assert status == "OUT_OF_RANGE"
        assert "too far in the past" in message
        assert "earliest read timestamp: " in message
        world.server.habits.names_horizon = False
        assert "earliest" not in refused(lambda: world.read(token))[1]

    def test_a_longer_retention_keeps_them(self, world):
        world.native.ddl("ALTER CHANGE STREAM s SET OPTIONS (retention_period = '3d')")
        world.put(("a", 1))
        world.server.advance(2 * DAY)
        assert len(world.everything()) == 1

    def test_a_stream_can_forget_without_the_clock(self, world):
        world.put(("a", 1))
        world.server.forget(world.name, "s")
        assert refused(world.everything)[0] == "OUT_OF_RANGE"

    def test_the_clock_does_not_go_back(self, world):
        with pytest.raises(ValueError, match="cannot go back"):
            world.server.advance(-1)

    def test_heartbeats_of_hours_come_at_once(self, world):
        (token, *_) = world.open()
        world.server.advance(3600)
        rows = world.read(token, beat="300000")
        assert [[len(part) for part in row] for row in rows] == [[0, 1, 0]] * 12

    def test_an_open_stream_sees_what_time_brings(self, world):
        (token, *_) = world.open()
        found = []

        def read():
            found.extend(world.read(token, end=later(world.start, 3600 * 10**6), timeout=30))

        reader = threading.Thread(target=read)
        reader.start()
        while not world.server.journal.open_streams:
            time.sleep(0.01)
        world.server.advance(3700)
        reader.join(20)
        assert len(found) >= 300

    def test_transactions_may_have_one_commit_timestamp(self, world):
        with world.server.one_commit_timestamp():
            world.put(("a", 1))
            world.put(("b", 1))
        world.put(("c", 1))
        told = world.everything()
        moments = [each[0] for each in told]
        assert moments[0] == moments[1] < moments[2]
        assert len({each[2] for each in told}) == 3

    def test_transactions_with_one_commit_timestamp_may_come_in_any_order(self, make):
        world = make(initial_partitions=1, mods_per_record=1, mixes_equal_timestamps=True)
        (token,) = world.open()
        with world.server.one_commit_timestamp():
            for number in range(8):
                world.put((f"a{number}", 1), (f"b{number}", 1))
        orders = [[(each[2], each[1]) for each in world.data(token)] for _ in range(5)]
        assert len({tuple(order) for order in orders}) > 1
        for order in orders:
            assert len(set(order)) == 16
            assert all(order.index((name, "00000000")) < order.index((name, "00000001")) for name, _ in order)

    def test_a_child_may_begin_in_the_timestamp_of_a_change(self, make):
        world = make(initial_partitions=1)
        (parent,) = world.open()
        with world.server.one_commit_timestamp():
            world.put(("a", 1))
            children = world.server.split(parent)
            world.put(("a", 2))
        start = world.read(parent)[-1][2][0][0]
        told = [each for child in children for each in world.data(child, start)]
        assert [each[0] for each in told] == [start]


class TestRecords:
    def test_a_transaction_may_have_thousands_of_records(self, make):
        world = make(mods_per_record=1, sequence_step=2)
        world.server.commit(
            world.name, Write("insert", "t", ["id"], [[f"k{number:04}"] for number in range(3000)])
        )
        told = world.everything()
        assert len(told) == 3000
        assert {each[9] for each in told} == {"3000"}
        assert len({each[1] for each in told}) == 3000
        assert [each[3] for each in told].count(True) == 2

    @pytest.mark.parametrize("characters", [1, 5, 64])
    def test_a_value_may_come_in_chunks_that_the_library_puts_together(self, make, characters):
        world = make(initial_partitions=1, chunk_characters=characters)
        text = 'é"\n' * 40
        world.put(*((f"k{number}", number, text) for number in range(3)), columns=("id", "n", "s"))
        (token,) = world.open()
        end = world.native.now()
        params = {"s": world.start, "e": end, "t": token, "h": "1000"}
        types = {
            "s": spanner.param_types.TIMESTAMP, "e": spanner.param_types.TIMESTAMP,
            "t": spanner.param_types.STRING, "h": spanner.param_types.INT64,
        }  # fmt: skip
        with world.native.database.snapshot() as snapshot:
            rows = list(snapshot.execute_sql(world.native.stream_sql("s"), params, types))
        (record,) = rows[0][0][0][0]
        assert [mod[1]["s"] for mod in record[6]] == [text] * 3
        messages = list(world.native.messages(world.native.stream_sql("s"), params))
        assert sum(message.chunked_value for message in messages) > 3

    def test_numbers_that_json_has_not_travel_as_text(self, world):
        for number, value in enumerate((float("nan"), float("inf"), float("-inf"))):
            world.put((f"k{number}", value), columns=("id", "f"))
        values = [each[6][0][1] for each in world.everything()]
        assert [value.split(",")[0] for value in values] == [
            '{"f":"NaN"',
            '{"f":"Infinity"',
            '{"f":"-Infinity"',
        ]

    def test_a_tag_and_a_row_that_expires_are_told(self, world):
        world.server.commit(world.name, Write("insert", "t", ["id"], [["a"]]), tag="mine")
        world.server.expire_row(world.name, "t", "a")
        assert [(each[7], each[11], each[12]) for each in world.everything()] == [
            ("INSERT", "mine", False),
            ("DELETE", "RowDeletionPolicy", True),
        ]

    def test_a_poison_record_is_no_json(self, world):
        world.server.poison(world.name, "s", "t", "a")
        (told,) = world.everything()
        assert told[6][0][1] == '{"broken":'

    def test_columns_come_and_go(self, world):
        world.put(("a", 1))
        world.native.ddl("ALTER TABLE t ADD COLUMN more INT64", "ALTER TABLE t DROP COLUMN f")
        world.put(("a", 1, 2), columns=("id", "n", "more"))
        assert [[column[0] for column in each[5]] for each in world.everything()] == [
            ["id", "n", "f", "s"],
            ["id", "n", "s", "more"],
        ]

    def test_a_stream_recreated_knows_no_token_of_the_old_one(self, world):
        (token, *_) = world.open()
        world.put(("a", 1))
        world.native.ddl("DROP CHANGE STREAM s", STREAM)
        assert refused(lambda: world.read(token))[0] == "OUT_OF_RANGE"
        status, message = refused(lambda: world.read(token, start=world.native.now()))
        assert (status, "does not belong to the Change Stream" in message) == ("INVALID_ARGUMENT", True)


class TestTroubles:
    @pytest.mark.parametrize("status", ["UNAVAILABLE", "INTERNAL", "PERMISSION_DENIED", "DATA_LOSS"])
    def test_a_call_ends_with_a_status(self, world, status):
        world.server.troubles.fail("ChangeStream", status, times=1)
        (token, *_) = world.open()
        assert refused(lambda: world.read(token))[0] == status
        assert world.read(token)

    @pytest.mark.parametrize("after", [0, 1, 3])
    def test_a_stream_breaks_off_after_so_many_rows(self, make, after):
        world = make(initial_partitions=1, mods_per_record=1)
        world.put(*((f"k{number}", number) for number in range(5)))
        (token,) = world.open()
        world.server.troubles.fail("ChangeStream", "UNAVAILABLE", times=1, after_rows=after)
        params = {"s": world.start, "e": world.native.now(), "t": token, "h": "1000"}
        rows = []

        def read():
            for message in world.native.messages(world.native.stream_sql("s"), params):
                rows.extend(message._pb.values)

        with pytest.raises(ServiceUnavailable):
            read()
        assert len(rows) == after
        rows.clear()
        read()
        assert len(rows) == 5

    def test_what_a_service_asks_to_wait_is_told(self, world):
        world.server.troubles.fail("ChangeStream", "RESOURCE_EXHAUSTED", retry_after=1.5)
        (token, *_) = world.open()
        with pytest.raises(GoogleAPICallError) as caught:
            world.read(token)
        (info,) = caught.value.details
        assert info.retry_delay.ToTimedelta().total_seconds() == 1.5

    def test_only_one_partition_may_have_it(self, world):
        a, b = world.open()
        trouble = world.server.troubles.fail("ChangeStream", "UNAVAILABLE", None, token=b)
        assert world.read(a)
        assert refused(lambda: world.read(b))[0] == "UNAVAILABLE"
        assert trouble.happened == 1
        trouble.end()
        assert world.read(b)

    def test_silence_lasts_until_it_is_ended(self, make):
        world = make(initial_partitions=1, mods_per_record=1)
        world.put(("a", 1), ("b", 2))
        (token,) = world.open()
        trouble = world.server.troubles.hang("ChangeStream", after_rows=1)
        assert refused(lambda: world.read(token, timeout=0.5))[0] == "DEADLINE_EXCEEDED"
        threading.Timer(0.2, trouble.end).start()
        assert len(world.data(token)) == 2

    def test_something_happens_while_an_answer_is_under_way(self, make):
        world = make(initial_partitions=1)
        (token,) = world.open()
        world.put(("a", 1))
        world.server.troubles.act(lambda: world.server.split(token))
        assert len(world.data(token)) == 1
        assert len(world.open()) == 2

    def test_sessions_are_lost(self, world):
        world.server.lose_sessions()
        with pytest.raises(NotFound, match="Session not found"):
            world.native.now()

    def test_a_server_goes_and_comes_back_with_what_it_has(self, world):
        world.put(("a", 1))
        world.server.stop()
        host, _, port = world.server.host.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        world.server.start()
        again = Native(world.server.host, TABLE)
        assert world.server.host
        assert again.now() > world.start
        assert len(world.server.partitions(world.name, "s")) == 2


class TestJournal:
    def test_it_has_what_was_asked(self, world):
        (token, *_) = world.open()
        world.read(token)
        call = world.server.journal.queries()[-1]
        assert (call.method, call.status, call.query.stream, call.query.token) == (
            "ExecuteStreamingSql", "OK", "s", token,
        )  # fmt: skip
        refused(lambda: world.native.read("missing", world.start))
        assert world.server.journal.queries()[-1].status == "INVALID_ARGUMENT"
        assert world.server.journal.counts()["CreateSession"] >= 1
        assert world.native.session in world.server.sessions
        world.server.journal.clear()
        assert world.server.journal.calls == []

    def test_a_call_that_is_cancelled_is_no_longer_open(self, world):
        (token, *_) = world.open()
        params = {"s": world.start, "e": None, "t": token, "h": "100"}
        call = world.native.messages(world.native.stream_sql("s"), params, timeout=30)
        journal = world.server.journal
        until = time.monotonic() + 10
        while journal.open_streams != 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert journal.most_streams == 1
        call.cancel()
        while journal.open_streams and time.monotonic() < until:
            time.sleep(0.01)
        assert journal.open_streams == 0


class TestLimits:
    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT * FROM t",
            "INSERT INTO t (id) VALUES ('a')",
            "SELECT a FROM INFORMATION_SCHEMA.TABLES x y z",
        ],
    )
    def test_what_it_does_not_know_it_says(self, world, sql):
        status, message = refused(lambda: world.native.ask(sql))
        assert status == "UNIMPLEMENTED"
        assert "scripted server does not know" in message

    def test_a_method_that_it_does_not_have(self, world):
        status, _ = refused(lambda: list(world.native.api.list_sessions(database=world.name)))
        assert status == "UNIMPLEMENTED"

    def test_a_stream_with_another_kind_of_partitions_cannot_be_read(self, world):
        world.native.ddl("CREATE CHANGE STREAM m FOR t OPTIONS (partition_mode = 'MUTABLE_KEY_RANGE')")
        status, message = refused(lambda: world.native.read("m", world.start))
        assert (status, "partition_mode" in message) == ("UNIMPLEMENTED", True)

    def test_a_multiplexed_session_is_not_deleted(self, world):
        assert (
            refused(lambda: world.native.api.delete_session(name=world.native.session))[0]
            == "INVALID_ARGUMENT"
        )

    def test_a_transaction_that_fails_leaves_nothing(self, world):
        assert refused(lambda: _insert_twice(world))[0] == "ALREADY_EXISTS"
        world.put(("a", 1))
        assert [each[7] for each in world.everything()] == ["INSERT"]


def _insert_twice(world):
    with world.native.batch() as batch:
        batch.insert("t", ["id"], [["a"]])
        batch.insert("t", ["id"], [["a"]])
