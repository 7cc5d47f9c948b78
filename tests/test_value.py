"""Tests that a class whose methods are generated on first use is the class that attrs would make at once."""

import copy
import inspect
import pkgutil
import pydoc
import re
import threading
import weakref
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import ClassVar, Generic, TypeVar

import attrs
import pytest

import multiclouddb_api
import multiclouddb_embedded
import multiclouddb_spi
from multiclouddb_api import value

T = TypeVar("T")


def _positive(_instance: object, _field: object, number: int) -> None:
    if number < 0:
        raise ValueError(number)


def classes(kind):
    """Return one class of each form that the library uses, made by `attrs` or by `value`."""
    frozen, define = kind.frozen, kind.define

    @frozen
    class Plain:
        """A class."""

        number: "int" = attrs.field(validator=_positive, converter=int)
        text: "str" = attrs.field(default="x", repr=lambda text: text.upper())
        more: "list[int]" = attrs.field(factory=list, eq=False, hash=False)
        _hidden: "int" = attrs.field(default=attrs.Factory(lambda self: self.number + 1, takes_self=True))
        last: "bool" = attrs.field(default=False, kw_only=True)
        shared: "ClassVar[int]" = 7

        def __attrs_post_init__(self) -> None:
            if self.number == 13:
                raise ValueError("unlucky")

        def twice(self) -> int:
            return 2 * self.number

    @frozen
    class Child(Plain):
        extra: "int" = 5
        text: "str" = "y"

        def twice(self) -> int:
            return super().twice() + 1

    @frozen
    class Empty:
        pass

    @frozen(eq=False)
    class ById:
        number: "int" = 1

    @frozen(init=False)
    class OwnInit:
        number: "int"

        def __init__(self, *numbers: int) -> None:
            self.__attrs_init__(sum(numbers))

    @frozen
    class OwnTexts(ABC):
        number: "int" = 1

        @abstractmethod
        def about(self) -> str: ...

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnTexts)

        def __hash__(self) -> int:
            return 1

    @frozen
    class Concrete(OwnTexts):
        name: "str" = "n"

        def about(self) -> str:
            return self.name

    @define
    class Open(Generic[T]):
        item: "T"
        number: "int" = attrs.field(default=1, validator=_positive)

    @define(eq=False, repr=False)
    class Quiet:
        number: "int" = 1

    made = (Plain, Child, Empty, ById, OwnInit, OwnTexts, Concrete, Open, Quiet)
    return {each.__name__: each for each in made}


NAMES = list(classes(attrs))
ARGUMENTS = {"Plain": ("4",), "Child": (4,), "OwnInit": (1, 2), "Open": ([1],)}
FIRST = {
    "equality": lambda a, b: (a == b, a != b, a == object()),
    "hash": lambda a, b: (type(a).__hash__ is None) or (hash(a) == hash(a)),
    "repr": lambda a, b: re.sub(r" at 0x\w+", "", repr(a)),
    "evolve": lambda a, b: type(attrs.evolve(a)) is type(a),
    "state": lambda a, b: a.__getstate__() and copy.copy(a).__getstate__() == a.__getstate__(),
    "fields": lambda a, b: [(field.name, field.alias, field.init) for field in attrs.fields(type(a))],
}


def answer(kind, name, first):
    made = classes(kind)[name]
    try:
        return FIRST[first](*(made(*ARGUMENTS.get(name, ())) for _ in range(2)))
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("name", NAMES)
def test_a_class_answers_like_that_of_attrs_whatever_is_asked_first(name, first):
    assert answer(value, name, first) == answer(attrs, name, first)


@pytest.mark.parametrize("name", NAMES)
def test_a_class_looks_like_that_of_attrs(name):
    theirs, ours = classes(attrs)[name], classes(value)[name]
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__slots__ == theirs.__slots__
    texts = [re.sub(r" at 0x\w+", "", pydoc.plaintext.document(each)).splitlines() for each in (theirs, ours)]
    assert texts[0] == texts[1]
    assert set(vars(ours)) == set(vars(theirs))
    assert {field.name for field in attrs.fields(ours)} == {field.name for field in attrs.fields(theirs)}


@pytest.mark.parametrize("kind", [attrs, value], ids=["attrs", "value"])
def test_rules_of_the_fields_are_kept(kind):
    made = classes(kind)
    Plain = made["Plain"]  # noqa: N806
    plain = Plain("3")
    assert (plain.number, plain._hidden, plain.twice(), made["Child"](3).twice()) == (3, 4, 6, 7)
    for wrong in (-1, 13):
        with pytest.raises(ValueError, match=str(wrong) if wrong < 0 else "unlucky"):
            made["Plain"](wrong)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plain.number = 5
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del plain.number
    opened = made["Open"]("a")
    with pytest.raises(ValueError, match="-1"):
        opened.number = -1
    with pytest.raises(AttributeError):
        opened.other = 1
    with pytest.raises(TypeError):
        hash(opened)
    with pytest.raises(TypeError, match="abstract"):
        made["OwnTexts"]()
    assert weakref.ref(plain)() is plain
    match plain:
        case Plain(number, text):
            assert (number, text) == (3, "x")


def test_a_class_of_attrs_may_inherit_from_one_that_was_not_used_yet():
    @attrs.frozen
    class Heir(classes(value)["Plain"]):
        heir: int = 1

    assert [field.name for field in attrs.fields(Heir)][-1] == "heir"
    assert Heir(1) == Heir(1)
    assert Heir(1).heir == 1


@pytest.mark.parametrize("_", range(20))
def test_threads_may_use_a_class_for_the_first_time_together(_):
    made, barrier = classes(value)["Plain"], threading.Barrier(4)

    def use(_):
        barrier.wait()
        one = made(1)
        return one == made(1), hash(one) == hash(made(1)), repr(one).partition("Plain")[2]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(use, range(4)))
    assert found == [(True, True, "(number=1, text=X, more=[], _hidden=2, last=False)")] * 4


@pytest.mark.parametrize("package", [multiclouddb_api, multiclouddb_spi, multiclouddb_embedded])
def test_the_methods_of_every_class_can_be_generated(package):
    """A mistake in a field, such as a wrong order of the defaults, is otherwise found at the first use."""
    seen = 0
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if found.name.endswith(".arrow"):
            continue
        for made in vars(import_module(found.name)).values():
            if isinstance(made, type) and made.__module__ == found.name and attrs.has(made):
                seen += 1
                assert callable(made.__init__)
                assert callable(made.__repr__)
                assert made.__eq__ is not None
    assert seen > 5
