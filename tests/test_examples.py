"""Checks the examples, the workflows and the settings of the site, with linters and by running them."""

import asyncio
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from multiclouddb_embedded import EmbeddedStore

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
SCHEMAS = {
    "vendor.github-workflows": sorted(ROOT.glob(".github/workflows/*.yml")),
    "vendor.github-issue-forms": [
        ROOT / f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("defect", "proposal")
    ],
    "vendor.github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.readthedocs": [ROOT / ".readthedocs.yaml"],
    "vendor.compose-spec": [EXAMPLES / "compose.yaml"],
}


def lint(program, *words):
    ran = subprocess.run([BIN / program, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_fits_its_schema(schema):
    assert len(SCHEMAS[schema]) > 0
    lint("check-jsonschema", "--builtin-schema", schema, *SCHEMAS[schema])


def test_yaml_is_well_formed():
    lint("yamllint", "--strict", ".github", ".readthedocs.yaml", ".yamllint.yaml", "examples")


def test_containers_pass_their_linter():
    lint("hadolint", "--failure-threshold", "warning", *sorted(EXAMPLES.glob("*/Dockerfile")))


@pytest.mark.parametrize(
    ("example", "page"),
    [
        ("worker/worker.py", "jobs/spread-over-machines.md"),
        ("spark/pipeline.py", "jobs/in-step-with-spark.md"),
    ],
)
def test_an_example_is_the_program_of_its_page(example, page):
    """The tests of the pages run it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    name = re.escape(Path(example).name)
    (code,) = re.findall(rf'^```python title="{name}"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    assert (EXAMPLES / example).read_text(encoding="utf-8") == code


def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "notebook/feed.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {}
    for cell in code:
        exec(compile(cell, "feed.ipynb", "exec"), names)
    assert len(names["page"].events) == 7
    assert not [cell for cell in cells if cell.get("outputs")]


def test_the_service_answers_with_the_newest_orders(tmp_path, monkeypatch):
    with EmbeddedStore(tmp_path / "shop.db", durable=False) as store:
        store.create_collection("orders")
        store.put("orders", "o-1", {"status": "new"})
        monkeypatch.setenv("SOURCE", f"embedded://{store.path}")
        monkeypatch.setenv("COLLECTION", "main/orders")
        service = runpy.run_path(str(EXAMPLES / "fastapi/app.py"))

        async def served():
            async with service["lifespan"](service["app"]):
                store.put("orders", "o-1", {"status": "paid"})
                store.put("orders", "o-2", {"status": "new"})
                async with asyncio.timeout(60):
                    while (
                        service["orders"].get("o-1") != {"status": "paid"} or "o-2" not in service["orders"]
                    ):
                        await asyncio.sleep(0.05)
                return await service["order"]("o-1"), (await service["metrics"]()).body

        found, metrics = asyncio.run(served())
    assert found == {"status": "paid"}
    assert b"multiclouddb_feed_pages_total" in metrics
