"""Makes the generated pages of the reference: `python docs/generate.py [FOLDER]`."""

from __future__ import annotations

import ast
import itertools
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from multiclouddb_api import Capability, CapabilitySet, Support, installed_providers
from multiclouddb_api.registry import load_plugin
from multiclouddb_conformance.mutants import MUTANTS, mutant_table
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_embedded.profile import PROFILES
from multiclouddb_spi import ProviderPlugin

_ROOT: Final = Path(__file__).resolve().parent.parent
_US8: Final = "conformance/multiclouddb_conformance/us8"
# The folders whose tests may have the mark `shows`.
_MARKED: Final = (_US8, "conformance/tests", "docs/tests", "tests")
_MARKS: Final = {Support.NATIVE: "", Support.EMULATED: "*emulated*; ", Support.UNSUPPORTED: "*unsupported*; "}
_WRONG: Final = ("ghosts", "missing", "stale")
_NOT_REFUSED: Final = "Check for it yourself: no request is refused."
GATES: Final = {
    Capability.CHANGE_FEED: "every read. A read of a collection or a physical partition that starts at a "
    "token or at `Now()` needs no other capability.",
    Capability.CHANGE_FEED_BEGINNING: "`Beginning()`.",
    Capability.CHANGE_FEED_POINT_IN_TIME: "`AtTime(…)`; the note gives the precision of the start.",
    Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: "`LogicalPartition(…)`.",
    Capability.CHANGE_FEED_SNAPSHOT: "a start at `Snapshot()`, and `on_expired=Resnapshot()`.",
    Capability.LOOKUP: "`client.lookup(…)`.",
    Capability.CHANGE_FEED_ROWS: "a start at `Snapshot(changes=False)`.",
    Capability.CHANGE_FEED_ALL_VERSIONS: f"a consumer of every version, such as an audit log. {_NOT_REFUSED}",
    Capability.CHANGE_FEED_DELETES: f"a consumer that removes what was deleted. {_NOT_REFUSED}",
    Capability.CHANGE_FEED_CHANGE_TYPES: f"a consumer that treats `CREATE` and `UPDATE` differently. "
    f"{_NOT_REFUSED}",
    Capability.CHANGE_FEED_OLD_ITEM_STATE: "every `old_item_state_mode` except `OMIT`.",
    Capability.CHANGE_FEED_DATABASE_SCOPE: "`EntireDatabase()`.",
    Capability.CHANGE_FEED_CLUSTER_SCOPE: "`EntireCluster()`.",
    Capability.RUN_COMMAND: "`client.run_command(…)` and `client.run_cursor_command(…)`.",
}
"""Maps each capability to the features that need it."""

_LIKE: Final = {
    Capability.CHANGE_FEED_POINT_IN_TIME: Capability.CHANGE_FEED_BEGINNING,
    Capability.CHANGE_FEED_CLUSTER_SCOPE: Capability.CHANGE_FEED_DATABASE_SCOPE,
}
"""Maps a capability to an earlier one, whose notes may be the same."""


def mutants_page() -> str:
    """Make the page that contains the table of mutants and explains its purpose."""
    return f"""# Mutants: broken readers, and the tests that catch them

Does the conformance suite find defects? It runs on these {len(MUTANTS)} readers, which have one defect
each, most of them from the bug trackers of real projects. With the defect, at least the tests in the
table fail; without it, the same run passes. Run them with `pytest conformance -k mutant`.

If you write a provider, you can also use the table the other way round: look for your failing tests, and
read which defect makes them fail.

{mutant_table()}

---

*Made by `make docs`.*
"""


def known_capabilities() -> dict[str, CapabilitySet]:
    """Map each title to the capabilities of the installed providers and of the embedded store's profiles."""
    found = {}
    for name in installed_providers():
        plugin: object = load_plugin(name)
        assert isinstance(plugin, ProviderPlugin)
        found[name] = plugin.capabilities()
    if "cosmos" in found:
        found["cosmos, mode=latest"] = CosmosOptions(mode="latest").narrow(found["cosmos"])
    return {**found, **{f"as {name}": profile.capabilities for name, profile in PROFILES.items()}}


def _rows(*rows: list[str]) -> str:
    head, *body = rows
    under = f"|{'---|' * len(head)}"
    return "\n".join([f"| {' | '.join(head)} |", under, *(f"| {' | '.join(row)} |" for row in body)])


def _alike(known: Mapping[str, CapabilitySet], item: Capability) -> dict[tuple[str, str], list[str]]:
    """Return the databases with the same support and note, by these two.

    Of a note that begins with that of an earlier capability, only the rest is shown.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for title, has in known.items():
        note = has[item].note
        if (earlier := _LIKE.get(item)) and has[earlier].note and note.startswith(has[earlier].note):
            name = earlier.name
            note = f"as for [{name}](#{name.lower()}){note.removeprefix(has[earlier].note)}"
        found.setdefault((_MARKS[has[item].support], note), []).append(title)
    return found


PUSHED: Final = """## Pushed batches

[Events of a batch](../jobs/react-to-changes.md#in-a-function-of-lambda-or-azure) that a function gets,
compared with those of a reader; `native` is missing:

- **dynamo**, `events_from_lambda`: `event_id`, `key`, `type`, `timestamp`, `order_key`, `address` and both
  states are equal. `by_expiry` is not known for a delete that names no identity, a record without a time gets
  another one, and `partition_id` names the stream, and the shard only in a tumbling window.
- **cosmos**, `events_from_function`: these fields and `by_expiry` are equal to those with `mode='latest'`, if
  host.json leaves texts alone that look like times. An item's own `_lsn` is dropped, and `partition_id` names
  the container. Batches of all versions are refused."""


ONE_KEY: Final = """## One key, one partition key

What [`verify` with `keys` or `partition_key`](../jobs/prove-and-repair.md#one-customers-rows) reads:

- **keys**: look-ups (`LOOKUP`); on Cosmos DB, where a look-up may lack the newest writes, also a scan of
  their partition keys.
- **partition_key**: a scan of this partition key (`CHANGE_FEED_LOGICAL_PARTITION_SCOPE`). So it is refused on
  DynamoDB and Spanner: name the keys there."""


def capabilities_page(known: Mapping[str, CapabilitySet]) -> str:
    """Make the page with every note of every capability; `databases_page` has the overview."""
    # A profile refuses what its service refuses; `multiclouddb capabilities` prints its own notes.
    services = {title: has for title, has in known.items() if not title.startswith("as ")}
    scanned: dict[tuple[str, str, str], list[str]] = {}
    for title, has in services.items():
        if has.scan is not None:
            facts = (has.scan.floor.value, f"{has.scan.settle_seconds:g} s", has.scan.price)
            scanned.setdefault(facts, []).append(title)
    scans = _rows(
        ["", "floor of a row", "settles after", "price"],
        *([" · ".join(titles), *facts] for facts, titles in scanned.items()),
    )
    notes = "\n\n".join(
        f"## {item.name}\n\nNeeded by {GATES[item]}\n\n"
        + "\n".join(
            f"- **{' · '.join(titles)}**: {mark}{note or 'yes'}"
            for (mark, note), titles in _alike(services, item).items()
        )
        for item in Capability
    )
    return f"""# Capabilities

On what condition and at what price each database has each capability; [Which database can do
what](databases.md#capabilities) is an overview. Without a mark, a capability needs no opt-in. *emulated*:
multiclouddb builds it on top of the service, if the request opts in as the note says. *unsupported*: a
request that needs it is refused with [`UNSUPPORTED_CAPABILITY`](errors.md#unsupported_capability), and the
note says what to do instead.

In code, ask `client.capabilities().is_supported(Capability.CHANGE_FEED_POINT_IN_TIME)`, and read
`client.capabilities()[capability].note`; in a terminal, `multiclouddb capabilities URL`.

{notes}

## Scans

These are the facts in `client.capabilities().scan`. The *floor* is where the `order_key` of a scanned row
lies: *high* is above every change before the scan and below every change after its start, *low* is below
every change, and *row* is that of the row's own last change. *settles after* is the longest time until a
change that a scan has shown is in the stream too (0 s: once `read_until` has passed the moment of the read).

{scans}

{PUSHED}

{ONE_KEY}

---

*Made by `python docs/generate.py` from `ProviderPlugin.capabilities()` of the installed providers.*
"""


def us8_data() -> dict[str, Any]:
    """Return the contents of `docs/us8.toml`: the promises."""
    return tomllib.loads((_ROOT / "docs" / "us8.toml").read_text(encoding="utf-8"))


def shown() -> dict[str, list[tuple[str, str]]]:
    """Return the place and the name of each test with the mark `@pytest.mark.shows("FR-065")`, by entry.

    The name is empty if the mark is that of a class or a module.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(path for folder in _MARKED for path in (_ROOT / folder).glob("**/*.py")):
        place = file.relative_to(_ROOT).as_posix().replace(f"{_US8}/", "us8/", 1)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        module = [node.value for node in tree.body if isinstance(node, ast.Assign)]
        marks = [(place, "", module)]
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                inside = f"{place}::{node.name}"
                marks.append((inside, "", node.decorator_list))
                tests = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                marks += [(inside, each.name.removeprefix("test_"), each.decorator_list) for each in tests]
        for where, name, expressions in marks:
            for mark in expressions:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.shows":
                    for argument in mark.args:
                        found.setdefault(ast.literal_eval(argument), []).append((where, name))
    return found


def _entries(entries: list[dict[str, Any]], tests: Mapping[str, list[tuple[str, str]]]) -> str:
    parts = []
    for entry in entries:
        lines = []
        for place, named in itertools.groupby(tests[entry["id"]], itemgetter(0)):
            names = ", ".join(f"`{name}`" if name else "all" for _, name in named)
            lines.append(f"    - `{place}`: {names}")
        parts.append(
            f'### {entry["title"]}\n\n{entry["text"].strip()}\n\n??? note "Tests"\n\n' + "\n".join(lines)
        )
    return "\n\n".join(parts)


def us8_page() -> str:
    """Make the page of promises: replace every `<!-- group -->` with the group's entries."""
    data, tests = us8_data(), shown()
    return re.sub(r"<!-- (\w+) -->", lambda mark: _entries(data[mark[1]], tests), data["page"])


def mongodb_page() -> str:
    """Make the page with every row of MongoDB's specifications; see `docs/mongodb_rows.py`."""
    page: str = runpy.run_path(str(_ROOT / "docs" / "mongodb_rows.py"))["page"]()
    return page


def tables() -> dict[str, Any]:
    """Return the functions of `docs/tables.py`."""
    return runpy.run_path(str(_ROOT / "docs" / "tables.py"))


def databases_page() -> str:
    """Make the page that compares the features of the databases; see `docs/tables.py`."""
    page: str = tables()["databases_page"](known_capabilities())
    return page


def outage_page() -> str:
    """Make the page that compares the ways to continue after an outage, from `docs/outage.toml`."""
    data = tomllib.loads((_ROOT / "docs" / "outage.toml").read_text(encoding="utf-8"))

    def row(way: Mapping[str, Any]) -> str:
        figures = [str(way[name]) for name in _WRONG]
        shown = figures[0] if len({*figures}) == 1 else " / ".join(figures)
        return f"| {way['way']} | {shown} | {way['text']} |"

    def table(mark: re.Match[str]) -> str:
        return "\n".join(map(row, data[mark[1]]))

    return re.sub(r"<!-- (\w+) -->", table, data["page"].lstrip())


def reports_data() -> dict[str, Any]:
    """Return the contents of `docs/reports.toml`: the public reports that were tried."""
    return tomllib.loads((_ROOT / "docs" / "reports.toml").read_text(encoding="utf-8"))


def reports_page() -> str:
    """Make the page of the public reports, with a table for each area."""

    def row(entry: Mapping[str, Any]) -> str:
        test = f"`{entry['test']}`" if "test" in entry else ""
        cells = [str(entry["round"]), entry["source"], entry["about"], entry["here"], entry["judged"], test]
        return f"| {' | '.join(cells)} |"

    data = reports_data()
    parts = [data["page"].strip()]
    for area, entries in data.items():
        if area != "page":
            head = "| round | source | about | here | judged | test |\n|---|---|---|---|---|---|"
            parts.append("\n".join([f"## {area}\n", head, *map(row, entries)]))
    return "\n\n".join(parts) + "\n"


def command_line_page(file: Path) -> None:
    """Make the page with the transcript of the command line. The recording takes some seconds."""
    subprocess.run([sys.executable, str(_ROOT / "docs" / "command_line.py"), str(file)], check=True)


def maintainers_pages() -> dict[str, str]:
    """Return the long pages for maintainers, by name; `docs/hooks.py` adds them to a build of the site."""
    # Only here, because the tests of the reference need no record.
    import benchmarks.page
    import benchmarks.peers.page
    import benchmarks.peers.record
    import benchmarks.record

    made = {
        "mutants": mutants_page(),
        "us8": us8_page(),
        "mongodb-conformance": mongodb_page(),
        "reports": reports_page(),
    }
    if (rows := benchmarks.record.Record.read()) is not None:
        made["benchmarks"] = benchmarks.page.rows_text(rows)
    if (peers := benchmarks.peers.record.Record.read()) is not None:
        made["peers"] = benchmarks.peers.page.page_text(peers)
    return made


def main() -> None:
    """Write every page into `docs/reference`, or into the given folder."""
    if len(sys.argv) > 2 or any(word.startswith("-") for word in sys.argv[1:]):
        sys.exit("usage: python docs/generate.py [FOLDER]")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "docs" / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "capabilities.md").write_text(capabilities_page(known_capabilities()), encoding="utf-8")
    (folder / "databases.md").write_text(databases_page(), encoding="utf-8")
    (folder / "after-an-outage.md").write_text(outage_page(), encoding="utf-8")
    command_line_page(folder / "command-line.md")


if __name__ == "__main__":
    main()
