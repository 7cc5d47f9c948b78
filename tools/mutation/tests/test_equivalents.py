"""Tests the list of equivalent mutants: an entry is found by the text of its lines, and every entry is
checked.
"""

import pytest

from mutation.equivalents import read_equivalents, stale
from mutation.mutant import mutants_of
from mutation.settings import FOLDER, Settings

ROOT = FOLDER.parents[1]
ENTRY = """
[[equivalent]]
file = "module.py"
function = "f"
before = "return a < b"
after = "return (a <= b)"
reason = "a and b are never equal where this is called"
"""
SOURCE = "def f(a, b):\n    return a < b\n"


@pytest.fixture
def listed(tmp_path):
    def read(text):
        (tmp_path / "equivalents.toml").write_text(text)
        return read_equivalents(tmp_path / "equivalents.toml")

    return read


@pytest.fixture
def possible(tmp_path):
    def find(source):
        (tmp_path / "module.py").write_text(source)
        return mutants_of(tmp_path, "module.py")

    return find


class TestMatching:
    def test_an_entry_is_found_again_wherever_its_line_moves(self, listed, possible):
        entries = listed(ENTRY)
        moved = possible(f"import math\n\n\n{SOURCE}")
        assert stale(entries, moved) == []
        assert entries[0].identity in {each.identity for each in moved}

    @pytest.mark.parametrize(
        "changed", [SOURCE.replace("a < b", "a < b + 1"), SOURCE.replace("def f", "def g")]
    )
    def test_an_entry_whose_line_is_gone_is_stale(self, listed, possible, changed):
        entries = listed(ENTRY)
        assert stale(entries, possible(changed)) == entries


class TestFile:
    @pytest.mark.parametrize(
        "text",
        [
            ENTRY.replace("a and b are never equal where this is called", "short"),
            ENTRY + ENTRY,
            '[[equivalent]]\nfile = "a"',
        ],
        ids=["no reason", "twice", "incomplete"],
    )
    def test_what_is_wrong_is_refused(self, listed, text):
        with pytest.raises(ValueError, match="entry"):
            listed(text)

    def test_the_project_lists_nothing_stale(self):
        every = [Settings.read(FOLDER / name, ROOT) for name in ("mutation.toml", "spanner.toml")]
        mutants = [each for settings in every for file in settings.modules for each in mutants_of(ROOT, file)]
        assert stale(read_equivalents(FOLDER / "equivalents.toml"), mutants) == []


class TestSettings:
    def test_at_least_150_are_planted_in_every_module_that_moves_a_position(self):
        settings = Settings.read(FOLDER / "mutation.toml", ROOT)
        assert settings.number >= 150
        assert settings.goal >= 0.95
        known = {"multiclouddb_spi/reading/filling.py", "multiclouddb_api/iterator.py"}
        assert known <= set(settings.modules)

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('modules = ["gone.py"]\ntests = []', "does not exist"),
            ("modules = []\ntests = []\nsede = 1", "sede"),
            ('modules = ["mutation.toml", "mutation.toml"]\ntests = []', "lists mutation.toml twice"),
        ],
    )
    def test_what_is_wrong_is_refused(self, tmp_path, text, match):
        (tmp_path / "mutation.toml").write_text(text)
        with pytest.raises(ValueError, match=match):
            Settings.read(tmp_path / "mutation.toml", tmp_path)
