"""Lets the reference show how to call attrs classes, because griffe supports only dataclasses."""

from __future__ import annotations

from typing import Any, Final

import griffe

_DECORATORS: Final = ("attrs.define", "attrs.frozen")


class AttrsExtension(griffe.Extension):
    """Gives each attrs class the `__init__` that attrs makes from its fields."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called when griffe has read a class and its members."""
        if any(decorator.callable_path in _DECORATORS for decorator in cls.decorators):
            fields = [_parameter(member) for member in cls.members.values() if _is_field(member)]
            init = griffe.Function("__init__", parameters=griffe.Parameters(*_self(), *filter(None, fields)))
            cls.set_member("__init__", init)


def _self() -> list[griffe.Parameter]:
    return [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]


def _is_field(member: griffe.Object | griffe.Alias) -> bool:
    labels = {"instance-attribute"}  # a ClassVar has not got it
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
