"""Defines a mutant, which is a module with one planted defect, and chooses the mutants of a run."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from mutation.changes import Change, changes_of

__all__ = ["Mutant", "lines_of", "mutants_of", "sample"]


@attrs.frozen
class Mutant:
    """One planted defect.

    Attributes:
        file: The path of the module, from the root of the repository.
        function: The qualified name of the enclosing function or class.
        before: The original lines, joined into one line.
        after: The changed lines with the defect, joined into one line.
        operator: The kind of the change.
        nth: A number that distinguishes mutants with the same `file`, `function`, `before` and `after`.
        lines: The numbers of the first and the last changed line.
        source: The text of the whole module with the defect.
    """

    file: str
    function: str
    before: str
    after: str
    operator: str
    nth: int
    lines: tuple[int, int]
    source: str = attrs.field(repr=False)

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """Return the identity, which stays the same when other lines are edited."""
        return (self.file, self.function, self.before, self.after, self.nth)

    @property
    def compiles(self) -> bool:
        """Return True if the source is a valid program."""
        try:
            compile(self.source, self.file, "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True

    @property
    def name(self) -> str:
        """Return a name of eight characters."""
        return self.rank("")[:8]

    def rank(self, seed: object) -> str:
        """Return the mutant's rank for a given seed, as text that sorts."""
        text = "\0".join(map(str, (seed, *self.identity)))
        return hashlib.sha256(text.encode()).hexdigest()


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Return a mutant for each defect that can be planted in a module, in the order of the source.

    Args:
        root: The folder to which the file's path is relative.
        file: The path of the module.
    """
    source = (root / file).read_text(encoding="utf-8")
    found: dict[str, Mutant] = {}
    counted: Counter[tuple[str, str, str, str, int]] = Counter()
    for change in changes_of(ast.parse(source)):
        mutant = _planted(file, source, change)
        if mutant.source in found:
            continue
        found[mutant.source] = attrs.evolve(mutant, nth=counted[mutant.identity])
        counted[mutant.identity] += 1
    return list(found.values())


def sample(mutants: Iterable[Mutant], seed: object, number: int) -> list[Mutant]:
    """Choose some mutants; the choice depends only on the source and the seed.

    After an edit of the source, most of the chosen mutants stay the same.

    Args:
        mutants: The mutants to choose from.
        seed: A number that determines the rank of each mutant, independently of the other mutants.
        number: The maximum number of chosen mutants.
    """
    return sorted(mutants, key=lambda mutant: mutant.rank(seed))[:number]


def lines_of(mutant: Mutant) -> Iterator[list[int]]:
    """Return sets of lines that a test must run to find a defect; the best set comes first.

    The function returns these sets in this order:

    1. The changed lines.
    2. The lines of the enclosing function.
    3. For an assignment, the other lines that contain the assigned name.
    4. The lines of the whole module.

    Args:
        mutant: A defect.
    """
    first, last = mutant.lines
    yield list(range(first, last + 1))
    lines = mutant.source.splitlines()
    around = [
        node
        for node in ast.walk(ast.parse(mutant.source))
        if isinstance(node, ast.stmt) and node.lineno <= first <= (node.end_lineno or node.lineno)
    ]
    for node in reversed(around):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield list(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for node in reversed(around):
        names = re.findall(r"\w+", lines[node.lineno - 1])[:1]
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield [n for n, line in enumerate(lines, 1) if n != node.lineno and names[0] in line]
    yield list(range(1, len(lines) + 1))


def _planted(file: str, source: str, change: Change) -> Mutant:
    lines = source.splitlines(keepends=True)
    node = change.node
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    changed = head + change.replacement + tail
    return Mutant(
        file,
        change.function,
        _in_one_line("".join(lines[first : last + 1])),
        _in_one_line(changed),
        change.operator,
        0,
        (first + 1, last + 1),
        "".join([*lines[:first], changed, *lines[last + 1 :]]),
    )


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
