"""Adds the long pages that a program makes, for maintainers, to the site of every build.

They are in no navigation, in no search and not in git; `docs/project/tested.md` links to them. The switch of
versions is left out of a build that has no versions.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

FOLDER: Final = "maintainers"
_GENERATE: Final = Path(__file__).with_name("generate.py")
_UNSEARCHED: Final = "---\nhide: [toc]\nsearch:\n  exclude: true\n---\n\n"


def pages() -> dict[str, str]:
    """Return the text of each page, by its name."""
    made: dict[str, str] = runpy.run_path(str(_GENERATE))["maintainers_pages"]()
    return made


def on_config(config: Any, **_: Any) -> Any:
    """Leave out the switch of versions, unless `mike` builds a version."""
    if "MIKE_DOCS_VERSION" not in os.environ:
        config.extra.pop("version", None)
    return config


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Add the pages to those of the folder."""
    for name, text in pages().items():
        files.append(File.generated(config, f"{FOLDER}/{name}.md", content=_UNSEARCHED + text))
    return files
