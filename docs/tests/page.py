"""Provides the programs, commands and tables of a how-to page, and its servers, for tests."""

import functools
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r'^```python title="(?P<name>[^"]+)"\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)


class Page:
    """A how-to page, or several pages that belong together.

    Attributes:
        text: The whole text.
        programs: The programs on the page that have a name.
    """

    def __init__(self, *names):
        self.text = "\n".join((ROOT / "docs/how-to" / name).read_text(encoding="utf-8") for name in names)
        self.programs = {found["name"]: found["code"] for found in PROGRAM.finditer(self.text)}

    def blocks(self, language):
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE)

    def commands(self, start):
        """Return the shell commands that start with this text, each as a list of words."""
        lines = [line for block in self.blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
        found = [shlex.split(line) for line in lines if line.startswith(start)]
        return [[os.path.expandvars(word) for word in words] for words in found]

    def run(self, name):
        """Run a program and return its output."""
        Path(name).write_text(self.programs[name], encoding="utf-8")
        ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        ran = subprocess.run(
            [sys.executable, "-W", "error", name], env=ours, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def said_behind(self, name):
        """Return the output that the page shows below a program."""
        end = next(found.end() for found in PROGRAM.finditer(self.text) if found["name"] == name)
        return re.match(r"\n\n```text\n(.*?)^```$", self.text[end:], re.DOTALL | re.MULTILINE)[1]

    def programs_run_in(self, file):
        """Return the programs that a file of tests runs, by name."""
        return set(re.findall(r'(?:run|param)\("([^"]+\.py)"', Path(file).read_text(encoding="utf-8")))

    def rows_below(self, heading, number=0):
        """Return the rows of a table below a heading or a paragraph, without the header."""
        below = self.text[self.text.index(heading) :]
        table = re.findall(r"^\|.*?\n\n", below, re.DOTALL | re.MULTILINE)[number]
        rows = [line.strip("|").split("|") for line in table.strip().splitlines()]
        return [[cell.strip() for cell in row] for row in rows[2:]]

    def categories(self):
        """Return the error categories that have a row in the page's table of failures."""
        rows = self.rows_below("## When it fails")
        return {category.partition("`:")[0].strip("`") for category, *_ in rows}


@functools.cache
def servers(provider):
    """Import modules of a provider's test servers, which are not an installed package."""
    spec = ModuleSpec(f"{provider}_servers", None, is_package=True)
    spec.submodule_search_locations = [str(ROOT / "providers" / provider / "tests/servers")]
    sys.modules[spec.name] = module_from_spec(spec)
    return lambda module: import_module(f"{spec.name}.{module}")
