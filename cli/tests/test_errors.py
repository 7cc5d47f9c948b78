"""Tests exit codes, and the one line on stderr."""

import pytest

from multiclouddb_api import ErrorCategory
from multiclouddb_cli.exits import TABLE, exit_code
from multiclouddb_cli.failure import scrub

from .terminals import in_terminal

CODES = {
    "INVALID_REQUEST": 3,
    "NOT_FOUND": 4,
    "AUTHENTICATION_FAILED": 5,
    "AUTHORIZATION_FAILED": 5,
    "CHECKPOINT_EXPIRED": 6,
    "UNSUPPORTED_CAPABILITY": 7,
    "THROTTLED": 8,
    "TRANSIENT_FAILURE": 8,
    "CONFLICT": 14,
    "PERMANENT_FAILURE": 9,
    "PROVIDER_ERROR": 9,
}
WRONG = {
    "no command": (),
    "unknown command": ("tial",),
    "unknown option": ("providers", "--colour"),
    "missing argument": ("tail",),
    "missing collection": ("tail", "embedded:///x/y.db"),
    "empty collection": ("tail", "embedded:///x/y.db", "main/"),
    "extra argument": ("providers", "embedded"),
    "start": ("tail", "URL", "orders", "--from", "yesterday"),
    "time without a zone": ("tail", "URL", "orders", "--from", "2026-01-31T12:00:00"),
    "token file": ("tail", "URL", "orders", "--from", "@/no/such/file"),
    "scope": ("tail", "URL", "orders", "--scope", "table"),
    "partition without an id": ("tail", "URL", "orders", "--scope", "partition:"),
    "key that is no JSON": ("tail", "URL", "orders", "--scope", "key:{"),
    "key that is no object": ("tail", "URL", "orders", "--scope", 'key:"o-1"'),
    "state": ("tail", "URL", "orders", "--state", "full"),
    "number": ("tail", "URL", "orders", "--max-events", "many"),
    "number too small": ("tail", "URL", "orders", "--max-events", "0"),
    "two formats": ("partitions", "URL", "orders", "--json", "--mermaid"),
    "no token command": ("token",),
    "empty token": ("token", "inspect", ""),
    "key of a check": ("token", "check", "URL", "x", "--key", "[]"),
}


class TestExitCode:
    def test_every_category_has_one_in_the_table(self):
        assert {str(category): exit_code(category) for category in ErrorCategory.known()} == CODES
        assert set(CODES.values()) <= TABLE.keys()

    @pytest.mark.parametrize("category", [*CODES, "OF_A_LATER_VERSION"])
    def test_is_the_category_s(self, run, fake, category):
        result = run("tail", f"{fake}/{category}", "orders")
        assert result.exit_code == CODES.get(category, 9)
        assert result.stderr == f"error: [{category}] first line of fake://***@host/{category} second\n"
        assert result.stdout == ""

    def test_a_defect_is_one_line_too(self, run, fake):
        result = run("tail", f"{fake}/DEFECT", "orders")
        assert result.exit_code == 1
        assert result.stderr.startswith("error: [UNEXPECTED] KeyError")
        assert result.stderr.count("\n") == 1

    def test_the_help_and_the_readme_list_them(self, run):
        text = run("--help").stdout
        assert all(f"{code}  {meaning}" in text for code, meaning in TABLE.items())

    @pytest.mark.parametrize("case", WRONG)
    def test_a_wrong_argument_is_2(self, run, url, store, case):
        result = run(*(url if word == "URL" else word for word in WRONG[case]))
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: [USAGE] ")
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (("tail", "no-url", "orders"), 3),
            (("tail", "embeded:///x.db", "orders"), 3),
            (("tail", "no.toml", "orders"), 3),
            (("tail", "URL", "no-such"), 4),
            (("partitions", "URL", "no-such"), 4),
            (("tail", "URL", "orders", "--from", "2100-01-01T00:00:00Z"), 3),
            (("tail", "URL", "orders", "--scope", "partition:x"), 2),
            (("tail", "URL", "orders", "--scope", "embedded:x"), 3),
            (("tail", "URL", "plain", "--state", "require", "--from", "beginning"), 7),
            (("token", "inspect", "nonsense"), 3),
            (("token", "inspect", "x" * 300), 3),
            (("token", "check", "URL", "nonsense"), 3),
        ],
    )
    def test_what_the_library_refuses_has_its_category(self, run, url, store, words, code):
        store.create_collection("plain", images="keys")
        result = run(*(url if word == "URL" else word for word in words))
        assert result.exit_code == code
        assert result.stderr.startswith("error: [")
        assert result.stderr.count("\n") == 1


LINK = "https://multiclouddb.readthedocs.io/latest/reference/errors/#not_found"


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_person_at_a_terminal_gets_a_link_dim_below_the_error(tmp_path, no_colour):
    code, text = in_terminal("tail", f"embedded://{tmp_path}/no.db", "orders", NO_COLOR=no_colour)
    error, link = text.splitlines()
    assert (code, link) == (4, LINK if no_colour else f"\x1b[2m{LINK}\x1b[0m")
    assert error.startswith("error: [NOT_FOUND] ")
    _, text = in_terminal("tail", f"embedded://{tmp_path}/no.db", "orders", "--debug")
    assert text.count(LINK) == 1
    assert text.splitlines()[-1].startswith("error: [NOT_FOUND] ")
    assert LINK not in in_terminal("tial")[1]


class TestDebug:
    @pytest.mark.parametrize("place", [0, 1, 3])
    def test_adds_the_traceback_wherever_it_stands(self, run, fake, place):
        words = ["tail", f"{fake}/CONFLICT", "orders"]
        words.insert(place, "--debug")
        result = run(*words)
        assert result.exit_code == 14
        assert "Traceback (most recent call last)" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("error: [CONFLICT]")
        assert "builtins.OSError\n" in result.stderr  # without its text
        assert "secret" not in result.stderr


class TestSecrets:
    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("at mongodb://u:p@h/d?x=1, then", "at mongodb://***@h/d?x=***, then"),
            ("'spanner://p/i'.", "'spanner://p/i'."),
            ("no url", "no url"),
            ("'mongodb://u:p q@h' is not one of: @FILE", "'mongodb://***@h' is not one of: @FILE"),
            ("extra argument (mongodb://u:1 p\tq@h/d)", "extra argument (mongodb://***@h/d)"),
        ],
    )
    def test_are_cut_out_of_urls(self, text, clean):
        assert scrub(text) == clean

    def test_in_a_usage_error_are_not_shown(self, run):
        result = run("mongodb://user:secret@host/db")
        assert result.exit_code == 2
        assert "secret" not in result.stderr
        result = run("tail", "embedded:///x", "orders", "--from", "mongodb://user:secret@host/db")
        assert "secret" not in result.stderr

    @pytest.mark.parametrize("words", ["mongodb://u:secret@h/d", "mongodb://u:a secret@h/d"])
    @pytest.mark.parametrize("before", ["", "@", "spark:", "key:", "delta:", "postgres:"])
    def test_wherever_a_url_stands_are_not_shown(self, run, url, store, words, before):
        for option in ("--from", "--scope", "--option"):
            result = run("tail", url, "orders", option, before + words, "--until-idle", "--debug")
            assert result.exit_code != 0
            assert "secret" not in result.output, option
        for option, other in (("--position", ()), ("--target", ("--position", "x"))):
            target = () if option == "--target" else ("--target", "delta:/nowhere")
            result = run("verify", url, "orders", option, before + words, *other, *target, "--debug")
            assert result.exit_code != 0
            assert "secret" not in result.output, option
        assert "secret" not in run("token", "inspect", before + words).output
