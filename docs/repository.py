"""Writes the address of the repository to the files that use it: `python docs/repository.py [ADDRESS]`.

The address is one setting, `[tool.multiclouddb] repository` in pyproject.toml; it is empty until
the repository has an address. If the setting is not empty, every distribution's metadata and the
site's footer contain links to the repository and to its issues. If ADDRESS is given, the script
also stores ADDRESS in the setting. If ADDRESS is not given, the script uses the address in the
setting.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_SETTING: Final = re.compile(r'(?<=^\[tool\.multiclouddb\]\nrepository = ")[^"\n]*(?="$)', re.MULTILINE)
_URLS: Final = re.compile(r'(^\[project\.urls\]\n)((?:^\w+ = "[^"\n]*"\n)+)', re.MULTILINE)
_SOCIAL: Final = re.compile(r"^  social:\n(?:    - .*\n)+", re.MULTILINE)
_EXTRA: Final = re.compile(r"^extra:\n", re.MULTILINE)


def projects(root: Path = _ROOT) -> list[Path]:
    """Return the pyproject.toml of every distribution, starting with the main distribution."""
    first = root / "pyproject.toml"
    members = tomllib.loads(first.read_text(encoding="utf-8"))["tool"]["uv"]["workspace"]["members"]
    return [first, *sorted(file for each in members for file in root.glob(f"{each}/pyproject.toml"))]


def address(root: Path = _ROOT) -> str:
    """Return the address in the setting; the text is empty if the repository has no address yet."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["tool"]["multiclouddb"]["repository"])


def issues(repository: str) -> str:
    """Return the address of the repository's issues."""
    return f"{repository.rstrip('/')}/issues"


def with_urls(text: str, repository: str) -> str:
    """Return a pyproject.toml whose metadata contains the address."""
    found = _URLS.search(text)
    assert found is not None
    urls = dict(re.findall(r'(\w+) = "([^"]*)"', found[2]))
    urls = {name: url for name, url in urls.items() if name not in ("Issues", "Source")}
    if repository:
        urls |= {"Issues": issues(repository), "Source": repository}
    lines = "".join(f'{name} = "{url}"\n' for name, url in sorted(urls.items()))
    return _URLS.sub(lambda part: part[1] + lines, text)


def with_links(text: str, repository: str) -> str:
    """Return a mkdocs.yml that adds the links to the footer of each page.

    The pages load nothing from the addresses in these links.
    """
    text = _SOCIAL.sub("", text)
    if not repository:
        return text
    social = (
        "  social:\n"
        f'    - {{ icon: fontawesome/brands/git-alt, link: "{repository}", name: Repository }}\n'
        f'    - {{ icon: material/bug-outline, link: "{issues(repository)}", name: Issues }}\n'
    )
    return _EXTRA.sub(lambda part: part[0] + social, text, count=1)


def written(repository: str, root: Path = _ROOT) -> dict[Path, str]:
    """Return the files that use the address, each with its required content."""
    found = {file: with_urls(file.read_text(encoding="utf-8"), repository) for file in projects(root)}
    found[root / "pyproject.toml"] = _SETTING.sub(lambda _: repository, found[root / "pyproject.toml"])
    site = root / "mkdocs.yml"
    return found | {site: with_links(site.read_text(encoding="utf-8"), repository)}


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else address()
    if wanted and not re.fullmatch(r"https://[^\s\"\\]+", wanted):
        sys.exit(f"ADDRESS: {wanted!r} is no address; write https://…")
    for path, text in written(wanted).items():
        path.write_text(text, encoding="utf-8")
