"""Packages that transformers imports and a worker never runs, imported only once something uses them.

transformers decorates functions for `torch.compile`, which the engine does not use, takes a function of scipy for losses, and
through accelerate boto3 where that is installed. A stand-in has such a package's place in `sys.modules`. It has the names that
transformers' imports read; any other name, and the import of a submodule, imports the package. (`importlib.util.LazyLoader`
does so at `from package import name`.)
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class DeferredPackage(MetaPathFinder, Loader):
    """A package with a stand-in, as have those submodules that are imported without it.

    Args:
        name: the package; its parent imports it on demand only.
        called: functions, and classes to make objects of, by module: a call imports the package.
        marking: decorators that mark a function and return it: they mark it once the package is imported.
        disabling: decorators that change nothing as long as the package is not imported.
    """

    def __init__(
        self, name: str, called: Mapping[str, Sequence[str]], marking: Sequence[str] = (), disabling: Sequence[str] = ()
    ) -> None:
        self._name = name
        self._marks: list[tuple[str, Any]] = []
        self._lock = threading.Lock()
        self._stand_ins = {module: _StandIn(module, self) for module in (name, *called)}
        for module, names in called.items():
            vars(self._stand_ins[module]).update({each: partial(self._call, module, each) for each in names})
        vars(self._stand_ins[name]).update({each: partial(self._mark, each) for each in marking})
        vars(self._stand_ins[name]).update({each: partial(self._disable, each) for each in disabling})

    def install(self) -> None:
        """Take the place of the package where it is installed and not imported yet."""
        if self._name not in sys.modules and importlib.util.find_spec(self._name.partition(".")[0]) is not None:
            sys.modules.update(self._stand_ins)
            sys.meta_path.insert(0, self)

    def real(self, module: str) -> ModuleType:
        """Import the package, and return it or a submodule."""
        with self._lock:  # not held by an import, which may wait for one of another thread that comes here
            for name in [name for name, stand_in in self._stand_ins.items() if sys.modules.get(name) is stand_in]:
                del sys.modules[name]
        package = importlib.import_module(self._name)
        marks, self._marks = self._marks, []
        for name, marked in marks:
            getattr(package, name)(marked)
        return importlib.import_module(module)

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a submodule of the stand-in in the package, whose import may have imported the submodule."""
        if fullname.rpartition(".")[0] != self._name or not self._is_deferred:
            return None
        package = self.real(self._name)
        if (present := sys.modules.get(fullname)) is not None:
            return ModuleSpec(fullname, self, loader_state=present.__spec__)
        return PathFinder.find_spec(fullname, package.__path__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that is imported already."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    @property
    def _is_deferred(self) -> bool:
        return sys.modules.get(self._name) is self._stand_ins[self._name]

    def _call(self, module: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.real(module), name)(*args, **kwargs)

    def _mark(self, name: str, marked: Any) -> Any:
        self._marks.append((name, marked))
        return marked

    def _disable(self, name: str, function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> Any:
        if function is None:
            return lambda given: self._disable(name, given, *args, **kwargs)
        by_package = functools.cache(lambda: getattr(self.real(self._name), name)(function, *args, **kwargs))

        @functools.wraps(function)
        def disabled(*given: Any, **named: Any) -> Any:
            return (function if self._is_deferred else by_package())(*given, **named)

        return disabled


class _StandIn(ModuleType):
    def __init__(self, name: str, package: DeferredPackage) -> None:
        super().__init__(name)
        # Imports read both; with a path, they ask the package for submodules.
        vars(self).update(__spec__=ModuleSpec(name, None), __path__=[], _package=package)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what looks through all modules asks for `__file__` and the like
            raise AttributeError(f"module {self.__name__!r} is not imported yet, and has no {name!r}")
        return getattr(self._package.real(self.__name__), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._package.real(self.__name__), name, value)


def defer_unused_imports() -> None:
    """Defer them; to be called before transformers is imported."""
    DeferredPackage("boto3", {}).install()
    DeferredPackage("scipy.optimize", {"scipy.optimize": ["linear_sum_assignment"]}).install()
    DeferredPackage(
        "torch._dynamo",
        {"torch._dynamo._trace_wrapped_higher_order_op": ["TransformGetItemToIndex"]},
        marking=["allow_in_graph", "assume_constant_result"],
        disabling=["disable"],
    ).install()
