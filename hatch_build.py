"""Makes the description on PyPI of the README: there, only absolute links lead anywhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_SITE = "https://multiclouddb.readthedocs.io/latest/"
_LINK = re.compile(r"(\]\()((?:docs/|[A-Z]+\.md)[^)\s]*)(\))")


def absolute(text: str) -> str:
    """Return the README with links to the site in place of links to files."""

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].removeprefix("docs/").partition("#")
        if path.endswith(".md"):
            path = re.sub(r"(?:index)?\.md$", "", path.lower() if "/" not in path else path)
            path = f"{path}/" if path else ""
        return f"{found[1]}{_SITE}{path}{mark}{anchor}{found[3]}"

    return _LINK.sub(link, text)


class DescriptionHook(MetadataHookInterface):
    """Sets the field `readme` of a distribution."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text)}
