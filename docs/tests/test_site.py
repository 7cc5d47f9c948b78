"""Tests that the site builds without warnings, shows everything public, and loads nothing from other
sites.
"""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import mkdocs.config
import pytest

import multiclouddb_api
import multiclouddb_api.aio
import multiclouddb_checkpoints
import multiclouddb_cosmos
import multiclouddb_dynamo
import multiclouddb_embedded
import multiclouddb_mirror
import multiclouddb_mongo
import multiclouddb_postgres
import multiclouddb_spi
import multiclouddb_tables.sqlite
import multiclouddb_verify
import pyspark_multiclouddb
from multiclouddb_api.errors import DOCS_URL

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LOADS = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "use": "href"}
API = ("api", "api-requests", "api-pages", "api-workers", "api-errors", "api-json")
REFERENCE = {
    **dict.fromkeys(API, multiclouddb_api),
    "checkpoints": multiclouddb_checkpoints,
    "columns": multiclouddb_tables,
    "cosmos": multiclouddb_cosmos,
    "dynamo": multiclouddb_dynamo,
    "embedded": multiclouddb_embedded,
    "mirror": multiclouddb_mirror,
    "mongo": multiclouddb_mongo,
    "postgres": multiclouddb_postgres,
    "spark": pyspark_multiclouddb,
    "spi": multiclouddb_spi,
    "sqlite": multiclouddb_tables.sqlite,
    "tables": multiclouddb_tables,
    "verify": multiclouddb_verify,
    "api-aio": multiclouddb_api.aio,
}
PROJECTS = [
    path
    for pattern in ("", "*/", "tools/emulators/", "providers/*/")
    for path in ROOT.glob(f"{pattern}pyproject.toml")
    if path.parent != ROOT / "tools"  # it is never published
]


class Page(HTMLParser):
    """The ids on a built page, the resources that it loads, and its text."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.loads, said = set(), [], []
        self.handle_data = said.append
        self.feed(text)
        self.text = "".join(said)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        if given.get("rel") != "canonical" and (source := given.get(LOADS.get(tag))):
            self.loads.append(source)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Provide the site, and the output of its build."""
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return folder, ran.stdout


@pytest.fixture(scope="module")
def pages(built):
    folder, _ = built
    found = {
        str(file.relative_to(folder)): Page(file.read_text(encoding="utf-8"))
        for file in folder.rglob("*.html")
    }
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def settings():
    return mkdocs.config.load_config(str(ROOT / "mkdocs.yml"))


def listed(nav):
    """Return the files in a navigation list, at any depth."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [file for part in parts for file in listed(part)]


def test_the_build_says_nothing_but_that_it_builds(built):
    _, said = built
    lines = [line for line in said.splitlines() if line.strip()]
    assert [line for line in lines if not line.startswith("INFO")] == []
    assert len(lines) <= 3, said


def test_errors_link_to_the_latest_version_of_this_site(settings):
    assert settings["site_url"] + settings["extra"]["version"]["default"] + "/" == DOCS_URL


def test_a_distribution_links_to_pages_that_are_there(pages):
    for project in PROJECTS:
        urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["urls"]
        for url in (urls["Changelog"], urls["Documentation"]):
            assert f"{url.removeprefix(DOCS_URL)}index.html" in pages, project


def addresses(text):
    """Return the pages that a module names with `DOCS_URL`, also through a constant, with their anchors."""
    for name, page in re.findall(r'^(\w+): Final = f"\{DOCS_URL\}([\w/-]+)"$', text, re.MULTILINE):
        text = text.replace(f"{{{name}}}", f"{{DOCS_URL}}{page}")
    return set(re.findall(r"\{DOCS_URL\}([\w/#-]+)", text))


def test_every_address_in_a_message_is_a_page_with_its_anchor(pages):
    """Errors name pages as `f"{DOCS_URL}databases/cosmos/"`, and a category its section."""
    sources = [path for path in ROOT.glob("**/*multiclouddb*/**/*.py") if ".venv" not in path.parts]
    named = {(path, found) for path in sources for found in addresses(path.read_text(encoding="utf-8"))}
    assert len({found for _, found in named}) > 5
    for path, found in named:
        page, _, anchor = found.partition("#")
        assert f"{page}index.html" in pages, path
        assert anchor in {"", *pages[f"{page}index.html"].ids}, path


def test_the_links_of_the_description_on_pypi_lead_to_the_site(built, pages):
    folder, _ = built
    text = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute"]((ROOT / "README.md").read_text("utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link.removeprefix(DOCS_URL) for link in links if link.startswith(DOCS_URL)]
    assert len(ours) > 10
    for link in ours:
        path, _, anchor = link.partition("#")
        name = f"{path}index.html" if path.endswith("/") or not path else path
        assert (folder / name).is_file(), link
        assert anchor in {"", *(pages[name].ids if name in pages else ())}, link


def test_whole_links_to_pages_of_this_site_lead_to_a_place(pages):
    """Those to `maintainers/`, whose pages are not in the repository; mkdocs does not check them."""
    texts = {path: path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    links = {
        (path, link)
        for path, text in texts.items()
        for link in re.findall(rf"\]\({DOCS_URL}([^)\s]*)\)", text)
    }
    assert len({link for _, link in links}) > 10
    for path, link in links:
        page, _, anchor = link.partition("#")
        assert f"{page}index.html" in pages, path
        assert anchor in {"", *pages[f"{page}index.html"].ids}, (path, link)


def test_a_public_name_is_on_one_page_of_the_reference(pages):
    for name in {f"{package.__name__}.{each}" for package in REFERENCE.values() for each in package.__all__}:
        assert sum(name in pages[f"reference/{page}/index.html"].ids for page in REFERENCE) == 1, name


def test_pages_and_style_sheets_load_nothing_from_another_host(built, pages):
    foreign = {(name, source) for name, page in pages.items() for source in page.loads if "//" in source}
    assert foreign == set()
    assert any(page.loads for page in pages.values())
    folder, _ = built
    for file in folder.rglob("*.css"):
        text = re.sub(r"[\"']", "", file.read_text(encoding="utf-8"))
        assert "url(http" not in text, file
        assert "url(//" not in text, file
