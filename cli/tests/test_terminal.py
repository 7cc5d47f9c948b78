"""Tests what `tail` shows on a narrow terminal, and that an idle `tail` shows that it is running."""

import re

import pytest

from multiclouddb_conformance.waiting import wait_until
from testing.command_line import apart_from_silence

from .terminals import Terminal, follow, in_terminal


@pytest.fixture
def long(store):
    store.put("orders", "a-key-that-is-much-longer-than-fifty-columns-of-a-terminal", {"total": 1})
    store.put("orders", "o-1", {"text": "long " * 30})
    return store


def test_a_tail_fits_and_says_that_it_is_alive(url, long):
    terminal = Terminal("tail", url, "orders", "--from", "beginning", "--old-state", "include")
    wait_until(lambda: "idle" in terminal.read())
    terminal.end()
    assert max(map(len, terminal.lines())) <= 50
    (event,) = [line for line in terminal.lines() if "UPDATE" in line]
    assert re.match(r'\d\d:\d\d:\d\d  UPDATE  id="o-1"  \{"text":"long', event)
    alive = [line for line in terminal.lines() if line.startswith("idle")]
    assert re.match(r"idle  at \d\d:\d\d:\d\d  lag [\d.]+s  12 events  ", alive[0])


def test_it_is_removed_before_an_event(url, long):
    terminal = Terminal("tail", url, "orders")
    wait_until(lambda: "idle" in terminal.read())
    long.put("orders", "o-new", {})
    wait_until(lambda: "o-new" in terminal.read())
    terminal.end()
    before, _, _ = terminal.text.partition("o-new")
    assert before.rindex("\x1b[2K") > before.rindex("idle")


def test_in_a_pipe_there_is_nothing(url, store):
    with follow(url, "orders", "--max-events", "1") as process:

        def printed():
            store.put("orders", "o-new", {})
            return process.poll() is not None

        wait_until(printed)
        assert (process.returncode, apart_from_silence(process.stderr.read())) == (0, "")
        assert len(process.stdout.read().splitlines()) == 1


CONTROLS = [chr(code) for code in (*range(32), *range(0x7F, 0xA0))]
# A terminal may show the cursor, colours and line ends of ours, but none of these pairs.
PLANTED = [f"<{control}>" for control in CONTROLS]


@pytest.mark.parametrize(
    "words",
    [
        ("tail", "--from", "beginning", "--until-idle"),
        ("tail", "--from", "beginning", "--until-idle", "--json"),
        ("tail", "--from", "beginning", "--until-idle", "--exact"),
        ("tail", "--from", "beginning", "--until-idle", "-f", r"%k %s %{new.name} %{key.id}\n"),
    ],
    ids=["lines", "json", "exact", "format"],
)
def test_no_control_character_of_a_document_reaches_a_terminal(url, store, words):
    text = "".join(PLANTED)
    store.put("orders", f"key{text}", {"name": text, text: [text]})
    code, shown = in_terminal(words[0], url, "orders", *words[1:], columns=900)
    assert code == 0
    assert not [planted for planted in PLANTED if planted in shown.replace("\r\n", "\n")]
    assert "<" in shown


def test_no_control_character_of_an_error_reaches_a_terminal(url, store):
    text = "".join(PLANTED[1:])  # no argument of a program contains a NUL
    missing = ("tail", url, f"missing{text}", "--from", "beginning")
    for words in (missing, (*missing, "--debug"), ("token", "check", url, text)):
        code, shown = in_terminal(*words, columns=900)
        assert code != 0
        # A traceback has many lines anyway.
        allowed = "<\n>" if "--debug" in words else None
        shown = shown.replace("\r\n", "\n")
        assert not [planted for planted in PLANTED if planted in shown and planted != allowed]


def test_a_pipe_gets_the_document_as_it_is(run, url, store):
    store.put("orders", "key", {"name": "<\x9b>"})
    words = ("tail", url, "orders", "--from", "beginning", "--until-idle")
    assert "<\x9b>" in run(*words, "--json").stdout
    assert "<\x9b>" in run(*words, "-f", r"%{new.name}\n").stdout
