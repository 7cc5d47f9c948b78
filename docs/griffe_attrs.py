"""A griffe extension that adds missing information to the API reference.

griffe supports dataclasses but not attrs, so this extension adds the `__init__` of each attrs class. The
docstrings of fields are shown with their class. The portability warnings that a docstring names become links
to their text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import griffe
from markdown.extensions.toc import slugify

_WARNINGS: Final = re.compile(
    r"[Ww]arnings?\s+(\d+(?:,\s+\d+)*(?:\s+and\s+\d+)?)\s+in\s+docs/configuration\.md"
)
_SECTION: Final = re.compile(r"^(Raises|Examples|Portability):$", re.MULTILINE)
_HEADING: Final = re.compile(r"^### ((\d+)\. .*)$", re.MULTILINE)
_CONFIGURATION: Final = Path(__file__).with_name("configuration.md").read_text(encoding="utf-8")
_ANCHORS: Final = {
    number: slugify(heading.replace("`", ""), "-") for heading, number in _HEADING.findall(_CONFIGURATION)
}
_DECORATORS: Final = (
    "attrs.define", "attrs.frozen",
)  # fmt: skip


class AttrsExtension(griffe.Extension):
    """Adds the generated `__init__` to each attrs class, and adds links to the warnings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called when griffe has read an object."""
        if obj.docstring is not None:
            obj.docstring.value = _WARNINGS.sub(_linked, obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called when griffe has read a class and its members."""
        if any(decorator.callable_path in _DECORATORS for decorator in cls.decorators):
            fields = [_parameter(member) for member in cls.members.values() if _is_field(member)]
            init = griffe.Function("__init__", parameters=griffe.Parameters(*_self(), *filter(None, fields)))
            cls.set_member("__init__", init)
            _describe(cls)
        elif "TypedDict" in map(str, cls.bases):
            _describe(cls)


def _linked(found: re.Match[str]) -> str:
    """Return links to the headings of the numbered warnings.

    The text of the first link also contains the word before the first number.
    """
    first, *others = re.split(r"(?<=\d)(?=,|\s)", found[1])
    links = [f"[{found[0].split()[0]} {first}][{_ANCHORS[first]}]"]
    links += [re.sub(r"\d+", lambda number: f"[{number[0]}][{_ANCHORS[number[0]]}]", each) for each in others]
    return "".join(links)


def _describe(cls: griffe.Class) -> None:
    """Move the docstrings of fields into a section of the class's docstring, before the other sections."""
    fields = [member for member in cls.members.values() if _is_field(member) and member.docstring]
    if not fields or cls.docstring is None:
        return
    lines = [
        f"    {field.name}: " + " ".join(field.docstring.value.split()) for field in fields if field.docstring
    ]
    section = "\n".join(["Attributes:", *lines])
    found = _SECTION.search(cls.docstring.value)
    place = found.start() if found else len(cls.docstring.value)
    text = cls.docstring.value
    cls.docstring.value = f"{text[:place].rstrip()}\n\n{section}\n\n{text[place:]}".rstrip()
    for field in fields:
        field.docstring = None


def _self() -> list[griffe.Parameter]:
    return [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]


def _is_field(member: griffe.Object | griffe.Alias) -> bool:
    labels = {"instance-attribute"}  # a ClassVar does not have this label
    return isinstance(member, griffe.Attribute) and labels <= member.labels


def _parameter(field: griffe.Object | griffe.Alias) -> griffe.Parameter | None:
    """Return the parameter of a field, or None for a field that callers do not pass."""
    assert isinstance(field, griffe.Attribute)
    given: dict[str, Any] = {"default": field.value}
    if isinstance(field.value, griffe.ExprCall) and field.value.canonical_path == "attrs.field":
        keywords = [word for word in field.value.arguments if isinstance(word, griffe.ExprKeyword)]
        given = {word.name: word.value for word in keywords}
    if str(given.get("init")) == "False":
        return None
    default = given.get("default")
    if "factory" in given:
        default = griffe.ExprCall(given["factory"], [])
    keyword_only = str(given.get("kw_only")) == "True"
    kinds = griffe.ParameterKind
    kind = kinds.keyword_only if keyword_only else kinds.positional_or_keyword
    return griffe.Parameter(field.name.lstrip("_"), annotation=field.annotation, kind=kind, default=default)
