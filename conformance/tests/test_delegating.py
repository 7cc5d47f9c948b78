"""Checks by introspection that a wrapper forwards every member of the contract to the wrapped object.

If the contract gets a new member, a test fails here until the wrapper forwards the member.
"""

import inspect
from typing import Protocol

import pytest

from multiclouddb_conformance.delegating import (
    WrappedFeed,
    WrappedMapper,
    WrappedPlugin,
    WrappedProvider,
    WrappedReader,
)
from multiclouddb_spi import Feed, Mapper, Provider, ProviderPlugin, Reader, abilities
from multiclouddb_spi.scan import contract as scan

CONTRACT = (Mapper, Reader, Feed, Provider, ProviderPlugin)
PROTOCOLS = [
    each
    for module in (abilities, scan)
    for _, each in inspect.getmembers(module, inspect.isclass)
    if vars(each).get("_is_protocol") and each is not Protocol
]
# The wrapper's `open` calls its `connect`; the wrapped plugin's `open` would return an unwrapped provider.
MADE_OF_OTHERS = {(ProviderPlugin, "open")}


class Answer(str):
    """A text that stands for an argument or answer of a call, or for a wrapped feed or provider."""

    spec = identity = provider_id = options_type = page_records = None


def methods(of):
    """Return the public methods of a contract that can be overridden."""
    return [
        name
        for name, member in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_") and not getattr(member, "__final__", False)
        if (of, name) not in MADE_OF_OTHERS
    ]


def attributes(of):
    return list(inspect.get_annotations(of))


def telling(name):
    """Make a method that returns its own name and its arguments."""

    def method(self, *args, **kwargs):
        self.asked.append((name, *args, *kwargs.values()))
        return self.made.setdefault(name, Answer(name))

    return method


def inside(of, *abilities):
    """Make an object of a contract class with these protocols; each member returns a recognizable value."""
    names = {name for each in (of, *abilities) for name in methods(each)}
    members = {name: telling(name) for name in names}
    made = type(f"Inside{of.__name__}", (of,), members)()
    vars(made).update({name: Answer(name) for name in attributes(of)}, asked=[], made={})
    return made


def wrapped(inner):
    """Put the kit's wrapper around the object."""
    match inner:
        case Mapper():
            return WrappedMapper(inner)
        case Reader():
            return WrappedReader(inner, WrappedFeed(inside(Feed), WrappedProvider(inside(Provider))), "p", 0)
        case Feed():
            return WrappedFeed(inner, WrappedProvider(inside(Provider)))
        case Provider():
            return WrappedProvider(inner)
        case ProviderPlugin():
            return WrappedPlugin(inner)


def check_passed_on(outer, inner, of, name):
    """Check that the wrapper calls the wrapped object with the same arguments and returns its answer."""
    parameters = list(inspect.signature(getattr(of, name)).parameters.values())[1:]
    args = [Answer(each.name) for each in parameters]
    named = {
        str(arg): arg for arg, each in zip(args, parameters, strict=True) if each.kind is each.KEYWORD_ONLY
    }
    inner.asked.clear()
    answer = getattr(outer, name)(*args[: len(args) - len(named)], **named)
    assert inner.asked == [(name, *args)], f"{type(outer).__name__}.{name} does not call the wrapped object"
    assert all(given is arg for given, arg in zip(inner.asked[0][1:], args, strict=True))
    expected = inner.made[name]
    # The result is a wrapper around the answer, or the answer itself.
    nothing = inspect.signature(getattr(of, name)).return_annotation == "None"
    assert (answer is None) if nothing else (getattr(answer, "inner", answer) is expected)


@pytest.mark.parametrize(
    ("of", "name"),
    [pytest.param(of, name, id=f"{of.__name__}.{name}") for of in CONTRACT for name in methods(of)],
)
def test_every_method_is_passed_on(of, name):
    inner = inside(of)
    check_passed_on(wrapped(inner), inner, of, name)


@pytest.mark.parametrize(
    ("of", "name"),
    [pytest.param(of, name, id=f"{of.__name__}.{name}") for of in CONTRACT for name in attributes(of)],
)
def test_every_attribute_is_that_of_the_one_inside(of, name):
    inner = inside(of)
    assert getattr(wrapped(inner), name) is getattr(inner, name)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.__name__)
class TestProtocols:
    def wrappers(self, protocol):
        """Wrap objects that implement the protocol, and return the wrappers that implement it too."""
        pairs = [(wrapped(inner), inner) for inner in (inside(of, protocol) for of in CONTRACT)]
        return [(outer, inner) for outer, inner in pairs if isinstance(outer, protocol)]

    def test_a_wrapper_can_do_it_where_the_one_inside_can(self, protocol):
        (pair,) = self.wrappers(protocol)  # a protocol belongs either to feeds or to providers
        for name in methods(protocol):
            check_passed_on(*pair, protocol, name)

    def test_and_around_another_wrapper(self, protocol):
        ((outer, _),) = self.wrappers(protocol)
        assert isinstance(wrapped(outer), protocol)

    @pytest.mark.parametrize("of", CONTRACT, ids=lambda each: each.__name__)
    def test_it_cannot_where_the_one_inside_cannot(self, protocol, of):
        inner = inside(of)
        assert not isinstance(inner, protocol)
        assert not isinstance(wrapped(inner), protocol)

    def test_a_name_in_the_contract_says_that_it_is_one(self, protocol):
        assert protocol.__name__.startswith("Supports")


def test_there_are_protocols():
    assert {each.__name__ for each in PROTOCOLS} == {
        name for name in (*abilities.__all__, *scan.__all__) if name.startswith("Supports")
    }


def test_what_a_wrapper_overrides_is_asked_for_heads_too():
    class Late(WrappedProvider):
        def find_heads(self, feed, cursors, max_records, deadline):
            return {"late": super().find_heads(feed, cursors, max_records, deadline)}

    inner = inside(Feed, abilities.SupportsHeads)
    outer = WrappedFeed(inner, Late(inside(Provider)))
    assert outer.heads({}, None, None) == {"late": "heads"}


def test_what_a_plugin_opens_has_the_wrapper():
    class Marked(WrappedPlugin):
        def wrap(self, provider):
            return WrappedProvider(provider)

    assert isinstance(Marked(inside(ProviderPlugin)).connect(None, None), WrappedProvider)
