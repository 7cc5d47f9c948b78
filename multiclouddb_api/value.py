"""Makes value classes with attrs, and lets attrs generate their methods when one of them is first used.

Generating the methods takes most of the time that a class needs at import, and a short process uses few
classes.
"""

from __future__ import annotations

import sys
from inspect import get_annotations
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from attrs import define, frozen
else:

    def frozen(cls: type | None = None, /, **options: Any) -> Any:
        """Make a frozen class with slots, like `attrs.frozen`."""
        return _made(attrs.frozen, cls, options)

    def define(cls: type | None = None, /, **options: Any) -> Any:
        """Make a class with slots, like `attrs.define`."""
        return _made(attrs.define, cls, options)


__all__ = ["define", "frozen"]


@attrs.frozen
class _Frozen:
    """The source of the methods that refuse a write."""


_REFUSALS: Final = {name: getattr(_Frozen, name) for name in ("__setattr__", "__delattr__")}
_OF_FIELDS: tuple[str, ...] = ("__attrs_attrs__", "__match_args__", "__getstate__", "__setstate__")
if sys.version_info >= (3, 13):
    _OF_FIELDS += ("__replace__",)
_OF_VALUES: Final = ("__attrs_props__", "__eq__", "__ne__", "__hash__", "__repr__")


class _Deferred:
    """Stands in a class for a method that attrs has not generated yet."""

    __slots__ = ("_name", "_recipe")

    def __init__(self, recipe: _Recipe, name: str) -> None:
        self._recipe = recipe
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        made = self._recipe.generate(self._name)
        return made.__get__(instance, owner) if hasattr(made, "__get__") else made


class _Recipe:
    """What attrs needs to generate the methods of one class."""

    def __init__(self, decorate: Any, raw: type, options: dict[str, Any]) -> None:
        self.cls: type
        self._decorate = decorate
        self._raw = raw
        self._options = options
        self._own = raw.__dict__

    def deferred(self) -> dict[str, Any]:
        """Return the namespace entries of the methods that attrs would add."""
        options, own = self._options, self._own
        names = [*_OF_FIELDS, "__attrs_props__"]
        has_init = options.get("init", "__init__" not in own)
        names.append("__init__" if has_init else "__attrs_init__")
        if self._decorate is attrs.define:
            names.append("__attrs_own_setattr__")
        if options.get("repr", "__repr__" not in own):
            names.append("__repr__")
        if options.get("eq", "__eq__" not in own and "__ne__" not in own):
            names += ["__eq__", "__ne__"]
            if self._decorate is attrs.frozen and "__hash__" not in own:
                names.append("__hash__")
        return {name: _Deferred(self, name) for name in names}

    def generate(self, name: str) -> Any:
        """Generate this method and those that belong to it, and return it."""
        names: tuple[str, ...]
        if name in _OF_VALUES:
            made = self._decorate(**self._options)(self._raw)
            names = _OF_VALUES
        else:
            # Comparisons and texts are made apart: most classes of a short process need only instances.
            made = self._decorate(**{**self._options, "eq": False, "repr": False})(self._raw)
            names = (*_OF_FIELDS, "__init__", "__attrs_init__", "__setattr__", "__attrs_own_setattr__")
        added = {
            each: made.__dict__[each] for each in names if each in made.__dict__ and each not in self._own
        }
        for each, value in added.items():
            setattr(self.cls, each, value)
        return added[name]


def _made(decorate: Any, cls: type | None, options: dict[str, Any]) -> Any:
    if cls is None:
        return lambda cls: _made(decorate, cls, options)
    recipe = _Recipe(decorate, cls, options)
    names = [name for name, kind in get_annotations(cls).items() if "ClassVar" not in str(kind)]
    space = {name: value for name, value in cls.__dict__.items() if name not in names}
    space.pop("__dict__", None)
    space.pop("__weakref__", None)
    inherited = cls.__mro__[1:-1]
    taken = {name: getattr(base, name) for base in inherited for name in base.__dict__.get("__slots__", ())}
    slots = [name for name in names if name not in taken]
    space |= {name: taken[name] for name in names if name in taken}
    if not any("__weakref__" in base.__dict__ for base in inherited):
        slots.append("__weakref__")
    space |= recipe.deferred()
    space["__slots__"] = tuple(slots)
    space["__qualname__"] = cls.__qualname__
    if decorate is attrs.frozen:
        space |= _REFUSALS
    made = type(cls)(cls.__name__, cls.__bases__, space)
    for value in made.__dict__.values():
        _rewire(value, cls, made)
    recipe.cls = made
    return made


def _rewire(value: object, old: type, new: type) -> None:
    """Let a method that says `super()` mean the new class."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if isinstance(value, FunctionType) and "__class__" in value.__code__.co_freevars:
        cell = (value.__closure__ or ())[value.__code__.co_freevars.index("__class__")]
        if cell.cell_contents is old:
            cell.cell_contents = new
