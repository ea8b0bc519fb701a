"""Written-out classes are what `dataclass` makes of them, but for being frozen."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError

from spotwise.simulator.compiled.explicit_classes import explicit

BASE = '''
"""A module with a base."""

from __future__ import annotations

from dataclasses import dataclass, field
from spotwise.core.values import value

@value
class Base:
    """A base.

    Attributes:
        id: its name.
    """

    id: str
    epoch: int = 1
'''
SOURCE = '''
"""A module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol
from spotwise.core.values import value
from base_module import Base

class Speaks(Protocol):
    def speak(self) -> str: ...

class WrongError(ValueError):
    pass

@value
class Message(Base):
    body: str = ""
    priority: int = field(default=0, kw_only=True)

@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A point."""

    x: float
    y: float = 0.0
    known: ClassVar[int] = 7

    def __post_init__(self) -> None:
        if self.x < 0:
            raise WrongError("below 0")

    @property
    def length(self) -> float:
        return (self.x ** 2 + self.y ** 2) ** 0.5

@dataclass(slots=True)
class Bag:
    things: list[int] = field(default_factory=list)
    hidden: str = field(default="?", repr=False, compare=False)
    later: int = field(init=False)

@dataclass(slots=True, eq=False)
class Thing:
    name: str

@dataclass(frozen=True, slots=True)
class Nested:
    point: Point
    points: tuple[Point, ...] = ()

@value
class Nothing:
    """Without fields."""
'''


def loaded(name: str, source: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(source, module.__dict__)
    return module


@pytest.fixture(params=["dataclasses", "explicit"])
def classes(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The same module, as it is and written out."""
    sources = {"base_module": BASE, "module_of_dataclasses": SOURCE}
    if request.param == "explicit":
        sources = explicit(sources)
        assert not any("@dataclass" in source or "@value" in source for source in sources.values())
    yield [loaded(name, source) for name, source in sources.items()][1]
    for name in sources:
        del sys.modules[name]


def test_fields_are_given_by_place_and_by_keyword(classes: ModuleType) -> None:
    message = classes.Message("a", 2, "hello", priority=3)
    assert (message.id, message.epoch, message.body, message.priority) == ("a", 2, "hello", 3)
    assert classes.Message("a") == classes.Message(id="a", epoch=1, body="", priority=0)
    with pytest.raises(TypeError):
        classes.Message("a", 2, "hello", 3)
    with pytest.raises(TypeError):
        classes.Message()


def test_equals_are_of_one_class_and_hash_alike(classes: ModuleType) -> None:
    assert classes.Message("a", 2) == classes.Message("a", 2) != classes.Message("a", 3)
    assert hash(classes.Message("a", 2)) == hash(classes.Message("a", 2))
    assert classes.Message("a") != SimpleNamespace(id="a", epoch=1, body="", priority=0)
    assert classes.Nothing() == classes.Nothing()
    assert classes.Thing("a") != classes.Thing("a")


def test_some_fields_are_not_compared_or_shown(classes: ModuleType) -> None:
    one, other = classes.Bag([1], "one"), classes.Bag([1], "other")
    one.later = other.later = 1
    assert one == other
    assert repr(one) == "Bag(things=[1], later=1)"


def test_defaults_are_made_anew(classes: ModuleType) -> None:
    one, other = classes.Bag(), classes.Bag()
    one.things.append(1)
    assert other.things == []


def test_order(classes: ModuleType) -> None:
    points = [classes.Point(2.0), classes.Point(1.0, 2.0), classes.Point(1.0, 1.0)]
    assert sorted(points) == [classes.Point(1.0, 1.0), classes.Point(1.0, 2.0), classes.Point(2.0)]
    assert classes.Point(1.0) <= classes.Point(1.0) < classes.Point(1.0, 1.0)
    with pytest.raises(TypeError):
        assert classes.Point(1.0) < 2


def test_what_is_wrong_is_refused(classes: ModuleType) -> None:
    with pytest.raises(classes.WrongError, match="below 0"):
        classes.Point(-1.0)


def test_methods_and_class_variables_stay(classes: ModuleType) -> None:
    assert classes.Point(3.0, 4.0).length == 5.0
    assert classes.Point.known == 7
    assert classes.Point.__doc__ == "A point."
    assert issubclass(classes.Message, classes.Base)


def test_text(classes: ModuleType) -> None:
    assert repr(classes.Message("a", body="it's")) == """Message(id='a', epoch=1, body="it's", priority=0)"""
    assert repr(classes.Nothing()) == "Nothing()"


def test_the_library_knows_them(classes: ModuleType) -> None:
    message = classes.Message("a", 2, "hello", priority=3)
    assert dataclasses.replace(message, body="bye") == classes.Message("a", 2, "bye", priority=3)
    assert [each.name for each in dataclasses.fields(message)] == ["id", "epoch", "body", "priority"]
    assert dataclasses.asdict(classes.Nested(classes.Point(1.0))) == {"point": {"x": 1.0, "y": 0.0}, "points": ()}
    match classes.Point(1.0, 2.0):
        case classes.Point(x, y):
            assert (x, y) == (1.0, 2.0)


def test_they_are_sent_between_processes(classes: ModuleType) -> None:
    for each in (classes.Message("a", 2, "hello", priority=3), classes.Nested(classes.Point(1.0))):
        assert pickle.loads(pickle.dumps(each)) == each


def test_pydantic_reads_and_writes_them(classes: ModuleType) -> None:
    nested = classes.Nested(classes.Point(1.0), (classes.Point(2.0, 3.0),))
    adapter = TypeAdapter(classes.Nested)
    written = adapter.dump_json(nested)
    assert written == b'{"point":{"x":1.0,"y":0.0},"points":[{"x":2.0,"y":3.0}]}'
    assert adapter.validate_json(written) == nested
    assert type(adapter.validate_json(written).point) is classes.Point
    assert adapter.validate_python(nested) == nested
    with pytest.raises(ValidationError, match="below 0"):
        adapter.validate_json(b'{"point":{"x":-1}}')
    with pytest.raises(ValidationError, match=r"point\.x|point.*x"):
        adapter.validate_json(b'{"point":{"x":"far"}}')


def test_pydantic_tells_those_of_a_union_apart(classes: ModuleType) -> None:
    adapter = TypeAdapter(list[classes.Point | classes.Thing])  # type: ignore[name-defined]
    things = [classes.Thing("a"), classes.Point(1.0)]
    assert adapter.dump_json(things) == b'[{"name":"a"},{"x":1.0,"y":0.0}]'
