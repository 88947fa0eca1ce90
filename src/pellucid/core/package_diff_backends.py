"""Two builds by different backends: each has options of its own, whose names say nothing of the other's.

What can be set side by side is little: backend, versions, target, precision. Source:
docs/how-to/compare-two-builds.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid.core.package_diff_sides import Side
from pellucid.core.words import printable

_NAMED_MAX: Final = 4  # limit: options of one side named in a sentence
_NOT_SAID: Final = "not said"


@dataclass(frozen=True, slots=True)
class Builder:
    """What one build was made by and for, in words.

    Attributes:
        versions: Of the backend's own libraries, by name.
        options: Names of the options that it was read back with.
    """

    backend: str
    versions: Mapping[str, str]
    target: str
    precision: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Builders:
    """Two builders that are not of one kind."""

    a: Builder
    b: Builder

    @property
    def words(self) -> str:
        """The backends, for the likely cause of whatever else differs."""
        return f"backend {self.a.backend} in A, {self.b.backend} in B"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Both side by side."""
        return [
            ("backend", self.a.backend, self.b.backend),
            ("versions", _versions(self.a), _versions(self.b)),
            ("target", self.a.target, self.b.target),
            ("precision", self.a.precision, self.b.precision),
        ]

    @property
    def told(self) -> frozenset[str]:
        """Subjects of differences that the rows say already."""
        return frozenset({"backend", "target", "precision", *self.a.versions, *self.b.versions})

    @property
    def options(self) -> dict[str, list[str]]:
        """Names of options by who has them: ``only_a``, ``only_b``, ``both``."""
        a, b = set(self.a.options), set(self.b.options)
        return {"only_a": sorted(a - b), "only_b": sorted(b - a), "both": sorted(a & b)}

    @property
    def options_in_words(self) -> str:
        """One sentence on all options."""
        found = self.options
        parts = [
            f"{_named(found[key])} {where}"
            for key, where in (
                ("only_a", "only in A"),
                ("only_b", "only in B"),
                ("both", "of one name in both"),
            )
            if found[key]
        ]
        return f"options of two backends are not comparable name by name: {'; '.join(parts) or 'none said'}"

    def record(self) -> dict[str, Any]:
        return {"a": self.a.backend, "b": self.b.backend, "options": self.options}


def builders(a: Side, b: Side) -> Builders | None:
    """Both builders where their backends differ, or ``None``."""
    first, second = _builder(a), _builder(b)
    if _NOT_SAID in (first.backend, second.backend) or first.backend == second.backend:
        return None
    return Builders(first, second)


def _builder(side: Side) -> Builder:
    recipe, environment = side.recipe or {}, side.environment or {}
    backend = recipe.get("backend") or environment.get("backend")
    said = _NOT_SAID if backend is None else printable(str(backend))
    return Builder(
        backend=said,
        versions=_own_libraries(said, environment.get("packages") or ()),
        target=_text(recipe.get("target")),
        precision=_text(recipe.get("precision")),
        options=tuple(map(printable, side.options or ())),
    )


def _text(value: object) -> str:
    return _NOT_SAID if value is None else printable(str(value))


def _own_libraries(backend: str, packages: Sequence[Mapping[str, str]]) -> dict[str, str]:
    prefix = backend.replace("-", "_")
    return {
        printable(package["name"]): printable(package["version"])
        for package in packages
        if package["name"].replace("-", "_").startswith(prefix)
    }


def _versions(builder: Builder) -> str:
    return ", ".join(f"{name} {version}" for name, version in builder.versions.items()) or _NOT_SAID


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{len(names)} ({', '.join(names[:_NAMED_MAX])}{more})"
