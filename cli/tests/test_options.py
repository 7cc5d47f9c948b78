"""Tests the options of `tail`: times, templates, selection, completion, and the errors for wrong values."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
import typer

from multiclouddb_api import ChangeFeedPage, OperationDiagnostics, event_from_json
from multiclouddb_api.codec import plain_value
from multiclouddb_cli.arguments import Selection, to_moment
from multiclouddb_cli.rendering import Template
from multiclouddb_embedded import EmbeddedStore
from testing.command_line import apart_from_silence

from .terminals import follow

EMPTY = ("--until-idle", "--from", "beginning")


def ids(lines):
    return [json.loads(line)["key"]["id"] for line in lines.splitlines()]


class TestTime:
    @pytest.mark.parametrize(
        ("text", "hours"),
        [("-1h", 1), ("-90s", 0.025), ("-1h30m", 1.5), ("-2.5d", 60), ("-1w", 168), ("now", 0)],
    )
    def test_an_age_is_taken_from_now(self, text, hours):
        before, age = datetime.now(UTC), timedelta(hours=hours)
        assert before - age <= to_moment(text, "--from") <= datetime.now(UTC) - age

    @pytest.mark.parametrize("text", ["1h", "-1", "-1y", "-h", "yesterday", "-1h ago", "-99999999999w", ""])
    def test_another_text_is_refused_with_an_example(self, text):
        with pytest.raises(typer.BadParameter, match="-1h"):
            to_moment(text, "--from")

    def test_the_end_leaves_later_changes_to_the_next_run(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--from", "beginning", "--checkpoint", tmp_path / "pos", "--exact")
        events = [event_from_json(line) for line in run(*words[:5], *EMPTY, "--exact").stdout.splitlines()]
        middle = sorted(event.timestamp for event in events)[4].isoformat()
        first = [event_from_json(line) for line in run(*words, "--to", middle).stdout.splitlines()]
        assert len(first) == 5
        assert (tmp_path / "pos").exists()
        rest = [event_from_json(line) for line in run(*words, "--until-idle").stdout.splitlines()]
        assert {event.event_id for event in first + rest} == {event.event_id for event in events}

    def test_the_end_leaves_a_checkpoint_even_if_one_page_has_it_all(self, run, url, store, tmp_path):
        kept = ("tail", url, "orders", "--checkpoint", tmp_path / "pos", "--json")
        run(*kept, "--from", "beginning", "--to", "-29m")
        assert (tmp_path / "pos").exists()
        store.put("orders", "o-new", {})
        assert "o-new" in ids(run(*kept, "--until-idle").stdout)

    @pytest.mark.parametrize("seconds", [0, 1])
    def test_the_last_moment_counts_whole(self, seconds):
        end = datetime(2026, 1, 1, tzinfo=UTC)
        reached = OperationDiagnostics(watermark=end + timedelta(seconds=seconds))
        page = ChangeFeedPage((), "token", diagnostics=reached)
        assert Selection(until=end).is_over(page, datetime.now(UTC)) == bool(seconds)

    def test_without_a_position_before_the_end_it_says_so(self, run, url, store, tmp_path):
        words = ("--checkpoint", tmp_path / "pos", "--from", "beginning", "--to", "-1h")
        result = run("tail", url, "orders", *words)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.startswith("warning: no checkpoint was saved")


class TestLast:
    def test_are_the_newest_in_order(self, run, url, store):
        words = ("tail", url, "orders", "--until-idle", "--json")
        assert ids(run(*words, "--last", 3).stdout) == ["o-7", "o-8", "o-9"]
        assert len(ids(run(*words, "--last", 50).stdout)) == 10
        assert ids(run(*words, "--last", 5, "--max-events", 2).stdout) == ["o-8", "o-9"]
        store.delete("orders", "o-1")
        assert ids(run(*words, "--last", 2, "--type", "create").stdout) == ["o-8", "o-9"]

    def test_are_all_that_is_kept_if_there_are_not_more(self, run, url, store):
        store.trim("orders", max_count=3)
        words = ("tail", url, "orders", "--until-idle", "--json")
        assert ids(run(*words, "--last", 50).stdout) == ["o-7", "o-8", "o-9"]

    def test_a_checkpoint_goes_first(self, run, url, store, tmp_path):
        words = (
            "tail",
            url,
            "orders",
            "--until-idle",
            "--json",
            "--last",
            2,
            "--checkpoint",
            tmp_path / "pos",
        )
        assert ids(run(*words).stdout) == ["o-8", "o-9"]
        store.put("orders", "o-new", {})
        assert ids(run(*words).stdout) == ["o-new"]

    def test_the_most_events_move_the_checkpoint(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--json", "--max-events", 2, "--checkpoint", tmp_path / "pos")
        assert ids(run(*words, "--last", 2).stdout) == ["o-8", "o-9"]
        store.put("orders", "o-new", {})
        assert ids(run(*words, "--until-idle").stdout) == ["o-new"]


def test_selected_events_are_counted_exactly_with_and_without_a_checkpoint(run, url, store, tmp_path):
    for number in range(6):
        store.delete("orders", f"o-{number}")
    words = ("tail", url, "orders", "--from", "beginning", "--type", "delete", "--max-events", 4, "--json")
    assert len(ids(run(*words).stdout)) == 4
    kept = (*words, "--checkpoint", tmp_path / "pos")
    seen = ids(run(*kept).stdout) + ids(run(*kept, "--until-idle").stdout)
    assert sorted(seen) == [f"o-{number}" for number in range(6)]


class TestTemplate:
    def test_has_the_letters_of_kcat_and_paths(self, run, url, store):
        template = r"%k|%y|%s|%S|%t|%{key.id}|%{new.total}|%{new.no.such}|%%|\t|\x41"
        lines = run("tail", url, "main/orders", *EMPTY, "-f", template).stdout.splitlines()
        assert '{"id":"o-3"}|CREATE|{"total":3}|11|main/orders|o-3|3||%|\t|A' in lines

    def test_a_line_end_of_its_own_is_the_only_one(self, run, url, store):
        out = run("tail", url, "orders", *EMPTY, "-f", r"%{key.id}\0").stdout
        assert (out.count("\0"), out.count("\n")) == (10, 0)

    def test_a_missing_document_is_null(self, run, url, store):
        store.delete("orders", "o-1")
        out = run("tail", url, "orders", *EMPTY, "-f", "%s %S", "--type", "delete").stdout
        assert out == "null -1\n"

    @pytest.mark.parametrize("text", ["", "{type} {key}", "%q", "%", "%{nothing}", r"\q", "\\"])
    def test_what_no_event_has_is_refused(self, text):
        with pytest.raises(typer.BadParameter):
            Template(text)


def test_plain_json_has_objects_as_keys_and_values_without_tags():
    value = {
        "n": Decimal("1.50"), "i": Decimal("30"), "long": Decimal("0.1234567890123456789"), "b": b"hi",
        "t": datetime(2026, 1, 31, tzinfo=UTC), "u": UUID(int=1), "big": 2**70, "$ref": 1,
        "list": [{"x": Decimal("2")}], "nan": float("nan"),
    }  # fmt: skip
    assert plain_value(value) == {
        "n": 1.5, "i": 30, "long": "0.1234567890123456789", "b": "aGk=", "t": "2026-01-31T00:00:00Z",
        "u": "00000000-0000-0000-0000-000000000001", "big": str(2**70), "$ref": 1, "list": [{"x": 2}],
        "nan": "NaN",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["1E+999999999", "-1E+999999999", "1E-999999999", "1E+6111", "9.5E+400"])
def test_a_decimal_of_any_size_is_printed_as_it_is(text):
    assert plain_value({"n": Decimal(text)}) == {"n": text}
    assert plain_value(Decimal("0E+999999999")) == 0


class TestRefused:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--checkpoint", "no/such/pos"), "make it first"),
            (("--checkpoint", "."), "is a folder"),
            (("--last", 3, "--from", "now"), None),
            (("--last", 3, "--from", "beginning"), "only one"),
            (("--json", "--format", "%k"), "only one"),
            (("--since", "now", "--to", "-1h"), "no change can be between"),
            (("--type", "drop"), "create"),
            (("--on-expired", "ignore"), "skip"),
            (("--option", "poll_seconds"), "NAME=VALUE"),
            (("--option", "poll=1"), "poll_seconds"),
            (("--option", "backfill=yes"), "true or false"),
            (("--max-scan-rate", 5), "--from snapshot"),
            (("--scope", "partition:p9"), "p0, p1"),
            (("--scope", "p0"), "partition:p0"),
            (("--only-key", "o-1"), '{"customer": "c-1"}'),
            (("--only-key", '{"idd": "o-1"}'), "whose first component is 'id' with a value of type str"),
            (("--only-key", '{"id": 5}'), "whose first component is 'id' with a value of type str"),
            (("--from", "2026-01-31"), "write 2026-01-31T00:00Z, or"),
            (("--since", "2026-01-31T12:00:01"), "write 2026-01-31T12:00:01Z, or"),
            (("--timeout", 0), "0.1"),
        ],
    )
    def test_before_anything_is_read(self, run, url, store, words, said):
        result = run("tail", url, "orders", "--until-idle", *words)
        if said is None:
            assert result.exit_code == 0
            return
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert "Value error" not in result.stderr

    def test_an_advice_says_what_to_type(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--checkpoint", tmp_path / "pos", "--until-idle")
        run(*words, "--from", "beginning", "--max-events", 2)
        store.trim("orders", max_count=0)
        assert "here: tail --on-expired snapshot, or tail --on-expired skip" in run(*words).stderr
        result = run(*words, "--on-expired", "skip")
        assert result.exit_code == 0
        assert result.stderr.startswith("notice: Gap: ")


def test_a_file_in_place_of_a_token_is_told_how_it_is_named(run, url, store, tmp_path):
    file = tmp_path / "pos"
    run("tail", url, "orders", "--checkpoint", file, "--until-idle", "--from", "now")
    for words in (("token", "check", url, file), ("token", "inspect", file)):
        result = run(*words)
        assert result.exit_code == 2
        assert f"write @{file}" in " ".join(result.stderr.split())
        assert run(*words[:-1], f"@{file}").exit_code == 0


def completed(run, line):
    """Return the completions that bash offers for a line."""
    env = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return run(env={**env, "_MULTICLOUDDB_COMPLETE": "complete_bash"}).stdout.split()


class TestCompletion:
    @pytest.mark.parametrize(
        ("end", "offered"),
        [
            ("--type ", {"create", "update", "delete"}),
            ("--on-expired s", {"skip", "snapshot"}),
            ("--from b", {"beginning"}),
            ("--from snapshot:", {"snapshot:ordered", "snapshot:interleaved"}),
            ("--scope d", {"database", "descendants:"}),
            ("--old-state r", {"require"}),
            ("--option p", {"poll_seconds="}),
        ],
    )
    def test_offers_values(self, run, url, store, end, offered):
        assert set(completed(run, f"multiclouddb tail {url} orders {end}")) == offered

    def test_offers_urls_and_collections(self, run, url, store):
        assert "embedded:///" in completed(run, "multiclouddb tail emb")
        assert completed(run, f"multiclouddb tail {url} ma") == ["main/orders"]


def test_a_waiting_tail_keeps_trying_until_there_is_a_store(path, url):
    with follow(url, *["orders", "--wait", "--max-events", "1", "--from", "beginning", "--json"]) as process:
        warning = next(line for line in iter(process.stderr.readline, "") if "no store" in line)
        with EmbeddedStore(path, durable=False) as store:
            store.create_collection("orders")
            store.put("orders", "o-1", {})
            assert ids(process.stdout.readline()) == ["o-1"]
            assert process.wait(timeout=60) == 0
    assert warning.startswith("warning: there is no store at ")


class TestDeadHost:
    """Tests a host that refuses connections; the engine keeps trying for three seconds."""

    def follow(self, fake, tmp_path, *words, command="tail", kind="DEAD"):
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site")}
        return follow(f"{fake}/{kind}", "orders", *words, command=command, env=env)

    def test_is_reported_before_the_run_ends_with_the_reason(self, fake, tmp_path):
        with self.follow(fake, tmp_path) as process:
            out, err = process.communicate(timeout=60)
        warning, error = apart_from_silence(err).splitlines()
        assert warning.startswith("warning: nobody at ")
        assert "--wait" in warning
        assert "until it works" not in warning.partition("--wait")[0]
        assert error.startswith("error: [TRANSIENT_FAILURE] nobody at ")
        assert (process.returncode, out, "a-hidden-key" in err) == (8, "", False)

    def test_is_reported_once_while_the_user_waits(self, fake, tmp_path):
        with self.follow(fake, tmp_path, "--wait") as process:
            lines = iter(process.stderr.readline, "")
            assert any(line.startswith("warning: nobody at ") for line in lines)
            process.terminate()
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, apart_from_silence(err)) == (143, "", "")

    def test_of_a_run_that_ends_is_its_error_alone(self, fake, tmp_path):
        with self.follow(fake, tmp_path, "--until-idle", kind="DEAD-ONCE") as process:
            _, err = process.communicate(timeout=60)
        assert err.startswith("error: [TRANSIENT_FAILURE] ")
        assert err.count("\n") == 1
