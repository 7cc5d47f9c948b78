"""Tests the setting that contains the repository's address. The metadata and the site use the address unless
the setting is empty.
"""

import runpy
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs/repository.py"))
ADDRESS = "https://example.org/team/multiclouddb"


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the files in the repository that may contain the address."""
    for file in [*SCRIPT["projects"](), ROOT / "mkdocs.yml"]:
        place = tmp_path / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    return tmp_path


def write(address, root):
    for file, text in SCRIPT["written"](address, root).items():
        file.write_text(text)


def urls(root):
    return [tomllib.loads(file.read_text())["project"]["urls"] for file in SCRIPT["projects"](root)]


def test_every_file_has_what_is_set_and_no_other_address():
    for file, text in SCRIPT["written"](SCRIPT["address"]()).items():
        assert text == file.read_text(), f"{file}: run python docs/repository.py"
    addresses = {url for each in urls(ROOT) for name, url in each.items() if name == "Source"}
    assert addresses == ({SCRIPT["address"]()} - {""})


def test_one_setting_is_enough_and_can_be_changed_and_taken_back(copy):
    before = {file: file.read_text() for file in SCRIPT["written"]("", copy)}
    for address in ("https://example.org/other", ADDRESS):
        write(address, copy)
        assert SCRIPT["address"](copy) == address
        for each in urls(copy):
            assert {"Changelog", "Documentation"} < each.keys()
            assert (each["Source"], each["Issues"]) == (address, f"{address}/issues")
    site = yaml.load((copy / "mkdocs.yml").read_text(), yaml.BaseLoader)
    assert [each["link"] for each in site["extra"]["social"]] == [ADDRESS, f"{ADDRESS}/issues"]
    write(SCRIPT["address"](), copy)
    assert {file: file.read_text() for file in before} == before
