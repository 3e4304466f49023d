"""A registry of factories by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Factories of ``T`` by name. kind: the noun for ``T`` in messages, e.g. "policy"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.makers: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Decorator: register a class or function under a name. Raises ValueError for a name that is taken."""

        def keep(make: F) -> F:
            if name in self.makers:
                raise ValueError(f"there is a {self.kind} called {name!r} already")
            self.makers[name] = make
            return make

        return keep

    def make(self, name: str, **settings: Any) -> T:
        """A new instance. Raises ValueError for an unknown name and lists the known ones."""
        if name not in self.makers:
            raise ValueError(f"no {self.kind} is called {name!r}; known: {', '.join(self.names())}")
        return self.makers[name](**settings)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.makers))
