"""No text and no frame of ours shows a password of a connection string, however it is written."""

import pickle
from datetime import UTC, datetime
from urllib.parse import quote

import psycopg
import pytest
from typer.testing import CliRunner

from multiclouddb_api import ErrorCategory, MulticloudDbError, ResourceAddress, connect, open_checkpoint_store
from multiclouddb_api.checkpoint import checkpoint_at
from multiclouddb_cli.main import app
from multiclouddb_conformance.sink_harness import rows
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_postgres import PostgresCheckpointStore, PostgresTarget, merge_into_postgres
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.mark import Expected, FeedSource, FoundTable
from multiclouddb_verify import verify
from testing.frames import shown_by

CHARACTERS = [chr(code) for code in range(1, 128)]
FIRST, SECOND = "hush", "mumble"
FORMS = {
    "a URL": "postgresql://me:{}@127.0.0.1:1/shop",
    "a URL with an encoded password": "postgresql://me:{encoded}@127.0.0.1:1/shop",
    "a URL with options": "postgres://me:{}@127.0.0.1:1/shop?application_name=x",
    "a URL with the password among the options": "postgresql://me@127.0.0.1:1/shop?password={encoded}",
    "words": "host=127.0.0.1 port=1 user=me password={} dbname=shop",
    "words, and the password last": "host=127.0.0.1 port=1 dbname=shop password={}",
    "words with quotes": "host=127.0.0.1 port=1 password='{quoted}' dbname=shop",
    "words in words": "host=127.0.0.1 port=1 dbname=postgresql://me:{encoded}@h/shop",
}
ENCODED = ("a URL with an encoded password", "a URL with the password among the options", "words with quotes")
FIX = Fix("k", (), "1", "{}", None, datetime.now(UTC))
EXPECTED = Expected(FeedSource("provider", ResourceAddress()), FoundTable(None))


def written(form, character, first=FIRST, second=SECOND):
    password = f"{first}{character}{second}"
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    return FORMS[form].format(password, encoded=quote(password, safe=""), quoted=quoted)


def use(dsn, shown):
    """Use a connection string everywhere; collect what is shown, and return the errors."""
    caught = []
    uses = [
        lambda: PostgresCheckpointStore(dsn).load("a"),
        lambda: shown.append(repr(PostgresCheckpointStore(dsn))),
        lambda: list(PostgresTarget(dsn, "orders").rows()),
        lambda: PostgresTarget(dsn, "orders").fix([FIX], EXPECTED),
        lambda: PostgresTarget(dsn, "orders").position(),
        lambda: shown.extend([repr(PostgresTarget(dsn, "orders")), PostgresTarget(dsn, "orders").name]),
        lambda: merge_into_postgres(rows(("a", 1, {})), None, dsn, "orders", None),
    ]
    for call in uses:
        try:
            call()
        except MulticloudDbError as error:
            caught.append(error)
            shown += [*shown_by(error, without=__file__), repr(error.detail)]
    return caught


@pytest.mark.parametrize("form", FORMS)
def test_every_character_of_a_password(form):
    for character in CHARACTERS:
        shown = []
        caught = use(written(form, character), shown)
        assert [text for text in shown if FIRST in text or SECOND in text] == [], repr(character)
        assert len(caught) in (5, 7), repr(character)
        if len(caught) == 7:
            assert {error.category for error in caught} == {ErrorCategory.INVALID_REQUEST}
            assert all("percent-encode" in error.message for error in caught)
            assert form not in ENCODED


@pytest.mark.parametrize("character", ["@", "/", "?", "#", ":", "%", "a"])
def test_the_errors_of_a_server_that_refuses(dsn, character):
    host = psycopg.conninfo.conninfo_to_dict(dsn)["host"]
    password = f"{FIRST}{character}{SECOND}"
    for user, database in (("postgres", "nowhere"), ("nobody", "tests")):
        login = f"{user}:{quote(password, safe='')}"
        for text in (
            f"postgresql://{login}@/{database}?host={quote(host, safe='')}",
            f"host={host} user={user} dbname={database} password={password}",
        ):
            shown = []
            assert len(use(text, shown)) == 5
            assert [each for each in shown if FIRST in each or SECOND in each] == []


@pytest.mark.parametrize("form", FORMS)
def test_verify_and_the_command_line(form, tmp_path):
    store = EmbeddedStore(tmp_path / "shop.db")
    store.create_collection("orders")
    url = f"embedded://{store.path}"
    with connect(url) as client:
        for character in "@/?#:%&= '\"\\a\x1b":
            dsn = written(form, character)
            with pytest.raises(MulticloudDbError) as caught:
                verify(client, "main/orders", PostgresTarget(dsn, "orders"), position=None)
            shown = shown_by(caught.value, without=__file__)
            ran = CliRunner().invoke(
                app,
                ["verify", url, "main/orders", "--target", f"postgres:{dsn}#orders",
                 *(["--debug"] if character == "@" else [])],
            )  # fmt: skip
            shown.append(ran.output)
            assert ran.exit_code not in (0, 1)
            assert [text for text in shown if FIRST in text or SECOND in text] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me@[::1]:5/shop", "::1:5/shop"),
        ("postgresql://me@a.example:1,b.example:2/shop", "a.example,b.example:1,2/shop"),
        ("postgresql://me@%2Ftmp%2Fpg-1/shop", "/tmp/pg-1/shop"),
        ("postgresql:///shop?host=/tmp", "/tmp/shop"),
        ("host=h hostaddr=10.0.0.1 dbname='my shop'", "h/my shop"),
        ("", "/"),
        ("postgresql://me@h/sh%40op", "h/…"),
    ],
)
def test_what_is_shown_is_made_of_the_parts(text, shown):
    assert PostgresTarget(text, "orders").name == f"postgres:{shown}#orders"


@pytest.mark.parametrize(
    "opened", [open_checkpoint_store, lambda url: checkpoint_at(f"{url}/orders")], ids=["store", "checkpoint"]
)
def test_a_password_in_the_url_of_a_store_is_in_no_frame(opened):
    for character in "@/?#:%a":
        with pytest.raises(MulticloudDbError) as caught:
            opened(f"postgresql://me:{FIRST}{character}{SECOND}@127.0.0.1:1/shop")
        shown = shown_by(caught.value, without=__file__)
        assert [text for text in shown if FIRST in text or SECOND in text] == []


@pytest.mark.parametrize("made", [PostgresCheckpointStore, lambda dsn: PostgresTarget(dsn, "orders")])
def test_a_pickle_has_the_password_and_what_is_made_of_it_shows_none(made):
    pickled = pickle.dumps(made(f"postgresql://me:{FIRST}@127.0.0.1:1/shop"))
    assert FIRST.encode() in pickled
    assert FIRST not in repr(pickle.loads(pickled))


@pytest.mark.parametrize("name", ["host", "hostaddr"])
def test_one_odd_host_of_several_is_refused_because_it_may_be_a_part_of_a_password(name):
    """A # or a / in a password that is not encoded ends the user's part, and the rest becomes a host."""
    with pytest.raises(MulticloudDbError, match="unusual characters") as caught:
        PostgresTarget(f"{name}=first,se#cret!,third dbname=d", "orders")
    assert "cret" not in str(caught.value)
