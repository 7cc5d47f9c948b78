"""Makes the page about MongoDB's specifications and the tests for them.

`docs/generate.py` calls this module. The text of the page and the rows come from
`docs/mongodb.toml`. This module finds the tests of a row by their names: `test_cs_07_…` and the
case `"CS-7: …"` of a table test the row CS-7.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

_ROOT: Final = Path(__file__).resolve().parent.parent
_NAME: Final = re.compile(r"test_((?:(?:cs|rr|rc)_\d\d_)+)(\w+)")
_ROW: Final = re.compile(r"(cs|rr|rc)_(\d\d)_")
_CASE: Final = re.compile(r"(CS|RR|RC)-(\d+): (.+)")
_HEAD: Final = ("| row | requirement | by | tests |", "|---|---|---|---|")
ROWS: Final = {"CS": 52, "RR": 28, "RC": 29}
"""The number of rows in each specification: change streams, retryable reads, run command."""
PLACES: Final = ("providers/mongo/tests", "docs/tests/test_mongodb_rows.py")
"""The folders that may contain tests for rows."""
UNIFIED: Final = "providers/mongo/tests/unified/expected.toml"
"""The file that lists which unified tests do not pass, and why."""
FULFILLERS: Final = ("server", "PyMongo", "provider", "documentation")
"""What can fulfil the requirement of a row."""


@attrs.frozen
class Row:
    """One requirement of a specification.

    Attributes:
        id: `"CS-7"`.
        asks: The requirement, in this project's words.
        by: What fulfils the requirement: one or more of `FULFILLERS`.
        gap: How PyMongo deviates from the requirement, and how the project works around the deviation; empty
            if PyMongo fulfils the requirement.
        no_test: The reason why the available server cannot show the behaviour; empty if a test shows it.
    """

    id: str
    asks: str
    by: tuple[str, ...] = attrs.field(converter=tuple)
    gap: str = ""
    no_test: str = ""


def data() -> dict[str, Any]:
    """Return the contents of `docs/mongodb.toml`: the page with placeholders, and the rows."""
    return tomllib.loads((_ROOT / "docs" / "mongodb.toml").read_text(encoding="utf-8"))


def rows(raw: Mapping[str, Any]) -> list[Row]:
    """Return all rows in order."""
    return [Row(**row) for specification in ROWS for row in raw[specification]]


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Return the row and the words of each test function and of each case of a table."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (named := _NAME.fullmatch(node.name)):
            for name, number in _ROW.findall(named[1]):
                yield f"{name.upper()}-{int(number)}", named[2].replace("_", " ")
        elif isinstance(node, ast.Constant) and (case := _CASE.fullmatch(str(node.value))):
            yield f"{case[1]}-{int(case[2])}", case[3]


def shown_rows(root: Path = _ROOT) -> dict[str, list[str]]:
    """Map each row id to the words of its tests.

    The function only parses the test files; it does not import or run the tests.
    """
    found: dict[str, list[str]] = {}
    for place in PLACES:
        path = root / place
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            for row, words in _tests(ast.parse(file.read_text(encoding="utf-8"))):
                found.setdefault(row, []).append(words)
    return found


def problems(known: Iterable[Row], shown: Mapping[str, list[str]]) -> list[str]:
    """Return the problems of the rows and their tests; empty if the page can be made."""
    known = list(known)
    there = [row.id for row in known]
    wanted = [f"{name}-{number}" for name, count in ROWS.items() for number in range(1, count + 1)]
    wrong = [f"{name}: must be in the data once, at its place" for name in wanted if there.count(name) != 1]
    wrong += [f"{name}: is not a row, but has data or a test" for name in {*there, *shown} - {*wanted}]
    for row in known:
        if row.id in shown and row.no_test:
            wrong.append(f"{row.id}: has a test, so the reason for having no test is wrong")
        if row.id not in shown and not row.no_test:
            wrong.append(f"{row.id}: has neither a test nor a reason for having no test")
        if not row.by or set(row.by) - set(FULFILLERS):
            wrong.append(f"{row.id}: is fulfilled by {row.by}, but only {FULFILLERS} are known")
    return wrong


def _line(row: Row, shown: Mapping[str, list[str]]) -> str:
    asks = f"{row.asks}<br>⚠ {row.gap}" if row.gap else row.asks
    tests = len(set(shown.get(row.id, ())))  # a set, because two files may contain the same test
    seen = str(tests) if tests else f"*{row.no_test}*"
    return f"| {row.id} | {asks} | {', '.join(row.by)} | {seen} |"


def _table(known: Iterable[Row], shown: Mapping[str, list[str]]) -> str:
    return "\n".join([*_HEAD, *(_line(row, shown) for row in known)])


def _summary(known: list[Row]) -> str:
    without = [row.id for row in known if row.no_test]
    gaps = [row.id for row in known if row.gap]
    return (
        f"Of {len(known)} rows, {len(known) - len(without)} have tests, and {len(without)} have a reason "
        f"instead ({', '.join(without)}). In {len(gaps)} rows PyMongo differs from its specification "
        f"({', '.join(gaps)})."
    )


def _unified() -> str:
    """Return what passes with PyMongo alone and not through this library, by the reason."""
    raw = tomllib.loads((_ROOT / UNIFIED).read_text(encoding="utf-8"))
    different = [(group["reason"], len(group["cases"])) for group in raw["differences"]]
    passed, less = raw["passed_by_pymongo"], sum(count for _, count in different)
    text = (
        f"Of {raw['cases']} cases, {passed} pass with PyMongo alone; the others need another server or an "
        f"operation that PyMongo does not have. {passed - less} of them pass through this library, and these "
        f"{less} do not:"
    )
    return "\n".join([text, "", *(f"- {why} ({count} case{'s' * (count > 1)})" for why, count in different)])


def page() -> str:
    """Return the page.

    Raises:
        ValueError: Raised if `problems` finds a problem, for example an unknown row. A row must
            have either a test or a reason for having no test.
    """
    raw, shown = data(), shown_rows()
    known = rows(raw)
    if wrong := problems(known, shown):
        raise ValueError("\n".join(wrong))
    parts = {"SUMMARY": _summary(known), "UNIFIED": _unified()}
    parts |= {name: _table([row for row in known if row.id.startswith(f"{name}-")], shown) for name in ROWS}
    return re.sub(r"<!-- (\w+) -->", lambda mark: parts[mark[1]], raw["page"]).lstrip()
