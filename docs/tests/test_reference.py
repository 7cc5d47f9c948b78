"""Tests that generated pages equal the output of their generators, and that links lead to existing pages."""

import ast
import inspect
import itertools
import re
import runpy
import textwrap
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_cli.exits import exit_code
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_embedded import EmbeddedOptions
from multiclouddb_mongo import MongoOptions, RunCommandOptions, RunCursorCommandOptions

DOCS = Path(__file__).resolve().parents[1]
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
AGAIN = "run: python docs/generate.py"
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def read(name):
    return (DOCS / name).read_text(encoding="utf-8")


ERRORS = read("reference/errors.md")


def shape(transcript):
    """Return the commands in order, each with the start of its output lines, without times and ids."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```$", transcript, re.DOTALL | re.MULTILINE):
        command, *lines = block.splitlines()
        labels = {re.sub(r"\d+", "N", re.match(r"\W*[\w.-]*", line)[0]) for line in lines if line.strip()}
        ends = [line for line in lines if line.startswith("(exit code")]
        found.append((command, labels, ends))
    return found


class TestGeneratedPages:
    @pytest.mark.parametrize(
        ("page", "make"),
        [
            ("after-an-outage", "outage_page"),
            ("databases", "databases_page"),
        ],
    )
    def test_a_page_is_that_of_today(self, page, make):
        assert read(f"reference/{page}.md") == GENERATE[make](), AGAIN

    def test_the_transcript_is_what_the_script_makes(self, tmp_path):
        """Running the script prints the same commands and the same kinds of lines as the page contains."""
        GENERATE["command_line_page"](tmp_path / "page.md")
        made, kept = (tmp_path / "page.md").read_text(encoding="utf-8"), read("reference/command-line.md")
        assert shape(made) == shape(kept), AGAIN
        prose = re.compile(r"^```\n.*?^```$", re.DOTALL | re.MULTILINE)
        assert prose.sub("", made) == prose.sub("", kept), AGAIN

        assert "Traceback" not in kept


class TestCapabilities:
    def test_the_table_is_that_of_today(self):
        made = GENERATE["capabilities_page"](GENERATE["known_capabilities"]())
        assert read("reference/capabilities.md") == made, AGAIN

    def test_each_is_shown_for_every_provider(self):
        assert list(GENERATE["GATES"]) == list(api.Capability)
        assert list(GENERATE["tables"]()["DATABASES"]) == sorted(api.installed_providers())
        page, known = read("reference/capabilities.md"), GENERATE["known_capabilities"]()
        firsts = re.findall(r"^- \*\*([^*]+)\*\*: \S", page, re.MULTILINE)
        shown = Counter(title for first in firsts for title in first.split(" · "))
        for title in api.installed_providers():
            assert shown[title] == len(api.Capability)
        for capability in api.Capability:
            for title, has in known.items():
                assert has[capability].support is api.Support.NATIVE or has[capability].note, title
                if title.startswith("as "):
                    continue
                lost = api.CapabilitySet(
                    {item: note for item, note in has.notes.items() if item is not capability}
                )
                assert GENERATE["capabilities_page"]({**known, title: lost}) != page


def described(kind):
    """Return the names of the fields of a class that have a docstring below them."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    return {
        field.target.id
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


class TestOptions:
    """Tests that every option is explained: in the API pages, or on the page about connections."""

    @pytest.mark.parametrize(
        "kind",
        [
            api.ClientConfig,
            api.ChangeFeedRequest,
            api.OperationOptions,
            api.Snapshot,
            api.ChangeFeedIterator,
            CosmosOptions,
            EmbeddedOptions,
            MongoOptions,
            RunCommandOptions,
            RunCursorCommandOptions,
        ],
    )
    def test_every_field_that_a_caller_gives_has_a_docstring(self, kind):
        repeated = attrs.fields_dict(RunCommandOptions) if kind is RunCursorCommandOptions else {}
        own = attrs.fields_dict(kind).keys() - repeated.keys() - {"client"}
        assert {name for name in own if not name.startswith("_")} <= described(kind)

    @pytest.mark.parametrize("provider", api.installed_providers())
    def test_every_name_in_a_connection_is_described(self, provider):
        page = read("configuration.md")
        table = page.split("settings beside `url`")[1].split("\n### ")[0]
        ((_, text),) = re.findall(rf"^\| `({provider})` \| (.*) \|$", table, re.MULTILINE)
        (everywhere,) = re.findall(r"^`allow_plaintext = true` lets .*$", table, re.MULTILINE)
        named = set(re.findall(r"`(\w+)`", text)) | {"url"}
        if f"`{provider}`" in everywhere:
            named.add("allow_plaintext")
        assert {*import_module(f"multiclouddb_{provider}.config")._OPTIONS} <= named


@pytest.mark.shows("Further 12")
class TestErrors:
    def test_every_category_has_a_section_and_every_section_a_category(self):
        assert re.findall(r"^## (\S+)$", ERRORS, re.MULTILINE) == list(api.ErrorCategory.known())

    def test_the_table_has_each_with_its_exit_code(self):
        rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \| (yes|no) \| (\d+) \|", ERRORS, re.MULTILINE)
        assert [(name, anchor, int(code)) for name, anchor, _, code in rows] == [
            (name, name.lower(), exit_code(name)) for name in api.ErrorCategory.known()
        ]
        assert [name for name, _, retryable, _ in rows if retryable == "yes"] == [
            "THROTTLED",
            "TRANSIENT_FAILURE",
        ]

    def test_a_section_is_where_errors_link_to(self):
        # MkDocs makes the anchor of a one-word heading by lower-casing the word, and one page for each file.
        for category in api.ErrorCategory.known():
            link = api.MulticloudDbError("", api.ErrorDetail(category)).help_url
            assert link == f"{DOCS_URL}reference/errors/#{category.lower()}"


def test_the_page_of_metrics_has_every_metric():
    code = read("../multiclouddb/otel.py")
    (table,) = re.findall(
        r"^\| `multiclouddb\.feed\.….*?\n\n", read("reference/metrics.md"), re.DOTALL | re.MULTILINE
    )
    firsts = " ".join(row.split("|")[1] for row in table.splitlines()[2:] if row)
    shown = {name for name in re.findall(r"`([a-z_.]+)`", firsts) if "diagnostics" not in name}
    assert shown == set(re.findall(r'"multiclouddb\.feed\.([a-z_.]+)"', code))


def test_links_lead_to_files():
    made = {(DOCS / "maintainers" / f"{name}.md").resolve() for name in GENERATE["maintainers_pages"]()}
    for page in DOCS.rglob("*.md"):
        links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
        there = [(page.parent / link).resolve() for link in links]
        assert [place for place in there if not (place.exists() or place in made)] == [], page


def test_the_changelog_begins_with_this_version_and_has_each_once():
    """So a release cannot be made without its entry, and a merge cannot bring back an old one."""
    project = tomllib.loads(read("../pyproject.toml"))["project"]
    versions = re.findall(r"^## \[?([\d.]+)", read("../CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == project["version"]
    assert len(versions) == len({*versions})
