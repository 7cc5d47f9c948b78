"""Tests what `tail` and `top` show on a narrow terminal, and that an idle `tail` shows that it is running."""

import re

import pytest

from multiclouddb_conformance.command_line import apart_from_silence
from multiclouddb_conformance.waiting import wait_until

from .terminals import Terminal, follow


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


def test_a_top_fits(url, long):
    terminal = Terminal("top", url, "orders", "--once", "--from", "beginning")
    assert terminal.end(None) == 0
    assert max(map(len, terminal.lines())) <= 50
    assert any("p1" in line and "active" in line for line in terminal.lines())
