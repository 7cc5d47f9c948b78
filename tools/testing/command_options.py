"""Tries every option of `multiclouddb tail` and `multiclouddb collections` on a provider's test server.

To use these tests, a provider's test class inherits `CommandOptions` and defines the fixture `shown`. The
commands run in this process, so each run takes only milliseconds. The command line package must be installed:
`pip install "multiclouddb[cli]"`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

import attrs

from multiclouddb_api import event_from_json
from testing.command_line import apart_from_silence

__all__ = ["CommandOptions", "Shown", "command"]

_KEYS: Final = ("o-1", "o-2", "o-3")


@attrs.frozen
class Shown:
    """A collection on a test server.

    Attributes:
        url: The URL of the server.
        collection: The collection, in the form that the commands accept.
        put: A function that writes a document with the given key.
        delete: A function that deletes the document with the given key.
        key: A function that returns the key in the form used in JSON output.
        begin: The options for a start at the first change.
        can_start_at: True if a feed can start at a given time.
        has_old: True if the service can send old documents.
        option: An option of the provider, or None if it has none.
        began: A time before the first change.
    """

    url: str
    collection: str
    put: Callable[[str], object]
    delete: Callable[[str], object]
    key: Callable[[str], Mapping[str, Any]]
    begin: tuple[str, ...] = ("--from", "beginning")
    can_start_at: bool = True
    has_old: bool = True
    option: str | None = None
    began: datetime = attrs.field(factory=lambda: datetime.now(UTC))

    def fill(self) -> None:
        """Write three documents, and delete the first."""
        for key in _KEYS:
            self.put(key)
        self.delete(_KEYS[0])


def command(*words: object) -> Any:
    """Run a command in this process."""
    runner = import_module("typer.testing").CliRunner()
    return runner.invoke(import_module("multiclouddb_cli.main").app, [str(word) for word in words])


class CommandOptions:
    """The tests of the options; a subclass defines the fixture `shown`."""

    def out(self, *words: object) -> str:
        """Return the output of a command that must succeed without a warning."""
        ran = command(*words)
        assert (ran.exit_code, apart_from_silence(ran.stderr)) == (0, ""), ran.stderr
        return str(ran.stdout)

    def refused(self, code: int, *words: object) -> str:
        """Return the single line that a refused command prints."""
        ran = command(*words)
        assert (ran.exit_code, ran.stdout) == (code, ""), ran.stderr
        (line,) = ran.stderr.splitlines()
        return str(line)

    def tail(self, shown: Shown, *words: object) -> list[str]:
        """Return the lines of a `tail` that starts at the first change and ends when the feed is idle."""
        ends = () if "--to" in words else ("--until-idle",)
        return self.out("tail", shown.url, shown.collection, *shown.begin, *ends, *words).splitlines()

    def test_collections_are_listed(self, shown: Shown) -> None:
        """Collections are listed in the form that the commands accept, and as JSON."""
        assert shown.collection in self.out("collections", shown.url).splitlines()
        database, _, collection = shown.collection.rpartition("/")
        listed = json.loads(self.out("collections", shown.url, *filter(None, [database]), "--json"))
        assert {"database": database or None, "collection": collection} in listed

    def test_what_is_printed_is_selected_and_formed(self, shown: Shown) -> None:
        """Tests `--type`, `--json`, `--format`, `--only-key` and `--exact`."""
        shown.fill()
        (line,) = self.tail(shown, "--type", "delete", "--json")
        assert (json.loads(line)["type"], json.loads(line)["key"]) == ("DELETE", shown.key("o-1"))
        keys = [json.loads(line) for line in self.tail(shown, "--format", "%k", "--type", "create")]
        assert sorted(map(str, keys)) == sorted(str(shown.key(key)) for key in _KEYS)
        (name,) = list(shown.key("o-1"))[-1:]
        texts = self.tail(shown, "-f", rf"%{{type}}:%{{key.{name}}}\n", "--only-key", self._partition(shown))
        assert texts == ["CREATE:o-2"]
        events = [event_from_json(line) for line in self.tail(shown, "--exact")]
        assert [event.type.value for event in events if event.key.components == shown.key("o-1")] == [
            "CREATE",
            "DELETE",
        ]

    def _partition(self, shown: Shown) -> str:
        """Return the partition key of the second document."""
        shown_key = dict(shown.key("o-2"))
        return json.dumps(dict(list(shown_key.items())[:1]))

    def test_times_bound_what_is_printed(self, shown: Shown) -> None:
        """Tests `--since`, `--to`, `--last`, and `--from` with a time or an age."""
        shown.fill()
        assert len(self.tail(shown, "--since", "-1h")) == 4
        assert self.tail(shown, "--to", "-1h") == []
        assert len(self.tail(shown, "--to", datetime.now(UTC).isoformat())) == 4
        words = ("tail", shown.url, shown.collection, "--until-idle")
        if shown.can_start_at:
            assert len(self.out(*words, "--from", shown.began.isoformat()).splitlines()) == 4
            ran = command(*words, "--from", "-1h")
            assert (ran.exit_code, len(ran.stdout.splitlines())) in ((0, 4), (6, 0))  # 6: an hour is too old
            lines = self.out(*words, "--last", 2, "--format", "%y").splitlines()
            assert lines[-1] == "DELETE"
            assert len(lines) == 2
        else:
            way_out = f"--option {shown.option}" if shown.option else "tail --from beginning --since"
            assert f"here: {way_out}" in self.refused(7, *words, "--from", "-1h")
            assert "--from beginning" in self.refused(7, *words, "--last", 2)

    def test_the_read_is_set(self, shown: Shown) -> None:
        """Tests `--on-expired`, `--timeout`, `--wait`, `--state` and `--old-state`."""
        shown.fill()
        words = ("--on-expired", "skip", "--timeout", 20, "--wait", "--state", "omit", "--format", "%s")
        assert set(self.tail(shown, *words)) == {"null"}
        old = (shown.url, shown.collection, *shown.begin, "--until-idle", "--old-state", "include")
        if shown.has_old:
            self.out("tail", *old)
        else:
            assert "old" in self.refused(7, "tail", *old)

    def test_options_of_the_provider_are_passed_on(self, shown: Shown) -> None:
        """Tests `--option` with a known name, an unknown name, and a wrong value."""
        words = ("tail", shown.url, shown.collection, "--until-idle")
        if shown.option is None:
            assert "has no options" in self.refused(2, *words, "--option", "no_such=1")
            return
        assert self.out(*words, "--option", shown.option) == ""
        name = shown.option.partition("=")[0]
        assert name in self.refused(2, *words, "--option", "no_such=1")
        assert name in self.refused(2, *words, "--option", f"{name}={{")

    def test_a_scope_is_what_partitions_prints(self, shown: Shown) -> None:
        """Tests `--scope` with the public id, and with the service's own name."""
        lines = self.out("partitions", shown.url, shown.collection).splitlines()[1:]
        ids = [line.split()[-1] for line in lines if "open" in line]
        natives = [line.split()[0] for line in lines if "open" in line]
        assert ids
        words = ("tail", shown.url, shown.collection, "--until-idle", "--scope")
        for scope in (ids[0], f"partition:{natives[0]}", f"descendants:{natives[0]}"):
            assert self.out(*words, scope) == ""
        assert "'no-such'" in self.refused(2, *words, "partition:no-such")
