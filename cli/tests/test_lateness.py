"""Tests `token check --max-lag`: whether a reader is late, and which checkpoints the command takes."""

import json
from datetime import UTC, datetime, timedelta

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_cli.exits import LATE, NOT_COVERED, NOT_KNOWN
from multiclouddb_spi import lateness as lateness_module
from multiclouddb_spi.continuation.lineage import INSPECTED
from multiclouddb_spi.continuation.token import decode_token, encode_token
from pyspark_multiclouddb.connection import close_connections
from pyspark_multiclouddb.micro_batches import MicroBatches
from pyspark_multiclouddb.options import parse_options

ORDERS = api.ResourceAddress("main", "orders")
OLD, YOUNG = "10m", "1h"  # the orders were written half an hour ago


def token_of(url, start=None, **request):
    """Return the token after a page."""
    with api.connect(url) as client:
        page = client.read_changes(api.ChangeFeedRequest(ORDERS, start or api.Beginning(), **request))
    return page.continuation_token


def drained(url, token, pages=20):
    """Return the token of the first idle page after a token."""
    with api.connect(url) as client:
        for _ in range(pages):
            page = client.read_changes(api.ChangeFeedRequest(ORDERS, api.FromContinuationToken(token)))
            token = page.continuation_token
            if page.idle:
                return token
    raise AssertionError("no page is idle")


@pytest.fixture
def check(run, url, store):
    """Run `token check`; return its exit code and what it says about the lag."""

    def checked(token, most, *words):
        result = run("token", "check", url, token, "--max-lag", most, "--json", *words)
        late = json.loads(result.stdout)["late"] if result.stdout else None
        return result.exit_code, None if late is None else late["is_late"], result

    return checked


class TestMaxLag:
    @pytest.mark.parametrize(("most", "code", "is_late"), [(OLD, LATE, True), (YOUNG, 0, False)])
    def test_a_change_that_waits_is_too_old_or_not(self, check, url, most, code, is_late):
        assert check(token_of(url, max_page_size=3), most)[:2] == (code, is_late)

    def test_a_late_reader_is_told_of_the_oldest_change(self, run, url, store):
        token = token_of(url, max_page_size=3)
        result = run("token", "check", url, token, "--max-lag", OLD)
        assert result.exit_code == LATE
        assert "late       a change of " in result.stdout
        assert result.stderr.startswith("error: [LATE] a change of ")
        found = json.loads(run("token", "check", url, token, "--max-lag", OLD, "--json").stdout)["late"]
        assert 1600 < found["seconds"] < 1900

    @pytest.mark.parametrize("most", ["0s", "1s", YOUNG])
    def test_an_idle_feed_is_not_late_however_old_its_token_is(self, check, url, store, most):
        token = decode_token(drained(url, token_of(url)))
        old = encode_token(attrs.evolve(token, issued_at=1_600_000_000, watermark=None, read_until=None))
        assert check(old, most)[:2] == (0, False)

    def test_of_a_partition_that_was_split_the_children_count(self, check, url, store):
        token = drained(url, token_of(url))
        store.split("orders", "p0")
        assert check(token, OLD)[:2] == (0, False)
        for number in range(20, 30):
            store.put("orders", f"o-{number}", {})
        assert check(token, OLD)[:2] == (LATE, True)
        assert check(token, YOUNG)[:2] == (0, False)

    def test_during_the_scan_of_a_snapshot_nobody_knows(self, check, url, store):
        token = token_of(url, api.Snapshot(), max_page_size=3)
        code, is_late, result = check(token, OLD)
        assert (code, is_late) == (NOT_KNOWN, None)
        assert "error: [NOT_KNOWN] the scan of a snapshot has not ended" in result.stderr

    @pytest.mark.parametrize("order", api.SnapshotOrder)
    def test_a_change_after_a_snapshot_may_be_too_old_before_its_scan_ends(self, check, url, store, order):
        token = token_of(url, api.Snapshot(order), max_page_size=3)
        store.put("orders", "o-1", {"total": 100})
        assert check(token, OLD)[:2] == (LATE, True)
        assert check(token, YOUNG)[:2] == (NOT_KNOWN, None)

    def test_a_snapshot_without_changes_is_never_on_time(self, check, url, store):
        with api.connect(url) as client:
            plan = client.plan_partitions(
                api.ChangeFeedRequest(ORDERS, api.Snapshot(api.SnapshotOrder.INTERLEAVED, changes=False))
            )
        for each in plan:
            assert check(each.continuation_token, YOUNG)[:2] == (NOT_KNOWN, None)

    def test_lost_changes_are_an_expired_checkpoint(self, check, url, store):
        token = token_of(url, max_page_size=3)
        store.trim("orders", max_count=0)
        code, is_late, result = check(token, YOUNG)
        assert (code, is_late) == (6, None)
        assert "[CHECKPOINT_EXPIRED]" in result.stderr

    def test_another_incarnation_is_refused(self, check, url, store):
        token = token_of(url)
        store.create_collection("orders", recreate=True)
        code, _, result = check(token, YOUNG)
        assert code == 3
        assert "recreated" in result.stderr

    def test_of_one_partition_only_its_own_changes_count(self, check, url, store):
        with api.connect(url) as client:
            plan = client.plan_partitions(api.ChangeFeedRequest(ORDERS, api.Now()))
        tokens = {each.partition_id.rpartition(":")[2]: each.continuation_token for each in plan}
        store.split("orders", "p0")
        for number in range(10):
            store.put("orders", f"o-{number}", {})
        assert check(tokens["p0"], OLD)[:2] == (0, False)  # its children have tokens of their own
        assert check(tokens["p1"], OLD)[:2] == (LATE, True)

    def test_a_partition_that_is_left_out_has_its_own_exit_code(self, check, url, store):
        whole = decode_token(drained(url, token_of(url)))
        part = {**whole.state, "p": [entry for entry in whole.state["p"] if entry[0] == "p0"]}
        assert check(encode_token(attrs.evolve(whole, state=part)), YOUNG)[0] == NOT_COVERED

    @pytest.mark.parametrize("text", ["", "1", "-1h", "1 hour", "1y", "1e99d", "9" * 400 + "w"])
    def test_an_age_that_is_none_is_refused(self, run, url, store, text):
        result = run("token", "check", url, token_of(url), "--max-lag", text)
        assert result.exit_code == 2
        assert "--max-lag" in result.stderr


def test_if_later_reads_fail_nobody_knows_and_the_reason_is_told(url, store, monkeypatch):
    """MongoDB's members may stop taking writes while the check runs."""
    monkeypatch.setattr(lateness_module, "_WAIT_SECONDS", 0.0)
    token = drained(url, token_of(url))
    request = api.ChangeFeedRequest(ORDERS, api.FromContinuationToken(token))
    with api.connect(url) as client:
        page = attrs.evolve(client.read_changes(request), idle=False)
    detail = api.ErrorDetail(api.ErrorCategory.TRANSIENT_FAILURE, retryable=True)
    answers = iter([page])

    def read(*_):
        if (found := next(answers, None)) is not None:
            return found
        raise api.MulticloudDbError("no majority has the writes", detail)

    def ask(most=timedelta(minutes=10)):
        now = datetime.now(UTC) + timedelta(hours=1)  # nothing proves that the reader is on time
        return lateness_module.lateness(read, now, INSPECTED, request, decode_token(token), most, 0.2)

    assert "no majority has the writes" in ask().reason
    with pytest.raises(api.MulticloudDbError, match="no majority"):
        ask()  # the first read fails


class TestCheckpoints:
    @pytest.fixture
    def stored(self, url, store):
        return token_of(url, max_page_size=3)

    @pytest.mark.parametrize("where", ["file://{}/orders", "sqlite://{}/all.db/orders"])
    def test_in_a_store(self, run, check, stored, tmp_path, where):
        where = where.format(tmp_path)
        place, _, name = where.rpartition("/")
        assert run("token", "check", f"embedded://{tmp_path}/shop.db", where).exit_code == 2
        api.open_checkpoint_store(place).save(name, stored, None)
        assert check(where, OLD)[:2] == (LATE, True)
        assert check(where, YOUNG)[:2] == (0, False)

    def test_in_a_file(self, check, stored, tmp_path):
        file = tmp_path / "orders.pos"
        file.write_text(stored)
        assert check(f"@{file}", OLD)[:2] == (LATE, True)

    @pytest.fixture
    def query(self, url, store, tmp_path):
        """Return the checkpoint of a Spark query, and a function that runs a micro-batch."""
        batches = MicroBatches(
            parse_options({"url": url, "collection": "orders", "pollInterval": "0 seconds"}).for_stream()
        )
        folder, ends = tmp_path / "query", [batches.initial()]
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)

        def follow(*, commit=True):
            ends.append(batches.after(ends[-1], None))
            number = len(ends) - 2
            (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(ends[-1])}\n")
            if commit:
                (folder / "commits" / str(number)).write_text("v1\n{}")

        follow()
        yield folder, follow
        close_connections()

    def test_of_a_spark_query(self, run, check, store, query):
        folder, follow = query
        assert check(f"spark:{folder}", OLD)[:2] == (LATE, True)
        follow(commit=False)  # its table may lack this micro-batch
        assert check(f"spark:{folder}", OLD)[:2] == (LATE, True)
        follow()
        assert check(f"spark:{folder}", OLD)[:2] == (0, False)
        assert "main/orders" in run("token", "inspect", f"spark:{folder}").stdout

    def test_of_a_spark_query_of_another_database_is_refused(self, run, fake, query):
        folder, _ = query
        result = run("token", "check", f"{fake}/NOT_FOUND", f"spark:{folder}", "--max-lag", OLD)
        assert result.exit_code == 3
        assert "belongs to provider 'embedded', not to 'fake'" in result.stderr

    def test_a_folder_that_is_no_checkpoint_is_refused(self, check, tmp_path):
        code, _, result = check(f"spark:{tmp_path}", OLD)
        assert code == 3
        assert "has no complete micro-batch" in result.stderr


def test_the_age_of_a_day_is_read():
    from multiclouddb_cli.arguments import to_age

    assert to_age("1d12h", "--max-lag") == timedelta(hours=36)


class TestGroup:
    """The positions of workers that share a feed, as the page about several machines stores them."""

    @pytest.fixture
    def group(self, url, store, tmp_path):
        """Plan the partitions; return the store, its URL, and the names of the checkpoints."""
        with api.connect(url) as client:
            planned = client.plan_partitions(api.ChangeFeedRequest(ORDERS, api.Beginning()))
        names = {f"part-{number}": each for number, each in enumerate(planned)}
        where = f"sqlite://{tmp_path}/positions.db"
        positions = api.open_checkpoint_store(where)
        plan = {name: {"id": each[0], "start": each[1], "parents": []} for name, each in names.items()}
        positions.save("plan", json.dumps(plan), None)
        return positions, f"{where}/plan", {name: each[0] for name, each in names.items()}

    def drain(self, url, positions, name, partition, form="{}"):
        with api.connect(url) as client:
            start = api.FromContinuationToken(json.loads(positions.load("plan").token)[name]["start"])
            for page in client.iterate_changes(
                api.ChangeFeedRequest(ORDERS, start, api.PhysicalPartition(partition)), until_idle=True
            ).pages():
                token = page.continuation_token
        positions.save(name, form.format(token), None)

    def test_the_lag_is_that_of_the_oldest_partition(self, run, url, group):
        positions, where, names = group
        assert len(names) > 1
        assert run("token", "check", url, where, "--max-lag", OLD).exit_code == LATE
        assert run("token", "check", url, where, "--max-lag", YOUNG).exit_code == 0
        *others, last = names
        for number, name in enumerate(others):
            self.drain(url, positions, name, names[name], "free {}" if number else "{}")
        result = run("token", "check", url, where, "--max-lag", OLD, "--json")
        assert result.exit_code == LATE
        told = json.loads(result.stdout)
        late = {name: each["late"]["is_late"] for name, each in told["positions"].items()}
        assert late == {name: name == last for name in names}
        assert told["lag_seconds"] == told["positions"][last]["lag_seconds"] > 1000
        assert last in result.stderr
        self.drain(url, positions, last, names[last])
        result = run("token", "check", url, where, "--max-lag", OLD)
        assert result.exit_code == 0, result.output
        assert f"positions  {len(names)}" in result.stdout

    def test_a_partition_that_is_done_is_not_asked_and_one_that_has_expired_ends_with_6(
        self, run, url, store, group
    ):
        positions, where, names = group
        first, *others = names
        positions.save(first, "done", None)
        told = json.loads(run("token", "check", url, where, "--json").stdout)
        assert [*told["positions"]] == others
        store.trim("orders", max_count=0)
        result = run("token", "check", url, where, "--json")
        assert result.exit_code == 6
        found = json.loads(result.stdout)["positions"].values()
        assert ("CHECKPOINT_EXPIRED", "trimmed") in {(each["error"], each["reason"]) for each in found}

    @pytest.mark.parametrize("text", ["{", '{"a": 1}', '{"a": {"start": 7}}'])
    def test_what_is_no_plan_is_refused(self, run, url, store, tmp_path, text):
        where = f"sqlite://{tmp_path}/positions.db"
        api.open_checkpoint_store(where).save("plan", text, None)
        result = run("token", "check", url, f"{where}/plan")
        assert result.exit_code == 2
        assert "plan" in result.stderr
