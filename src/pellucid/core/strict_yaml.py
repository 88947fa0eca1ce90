"""YAML that means one thing: no duplicate keys, no aliases, no tags, no surprising words.

Only ``true``, ``false`` and ``null`` are words; ``yes``, ``no``, dates and octal numbers stay text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from pellucid.errors import FormatError

SIZE_MAX: Final = 2**20  # limit: a page of settings, never data
DEPTH_MAX: Final = 16  # limit: deeper than any document of ours; bounds recursion


class _Loader(yaml.SafeLoader):
    """A stricter SafeLoader: without aliases, duplicate keys and YAML 1.1's words."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise FormatError("expected plain values, got an alias", hint="write the value again")
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise FormatError(f"expected at most {DEPTH_MAX} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if type(key) is not str:
                raise FormatError(
                    f"line {key_node.start_mark.line + 1}: expected a text key, got {key!r:.40}"
                )
            if key in seen:
                raise FormatError(
                    f"line {key_node.start_mark.line + 1}: expected each key once, got {key!r:.40} twice"
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:null|~|)$"), ["n", "~", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^-?(?:0|[1-9][0-9]{0,18})$"), list("-0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^-?[0-9]{1,18}(?:\.[0-9]{1,18}(?:e[-+]?[0-9]{1,3})?|e[-+]?[0-9]{1,3})$"),
    list("-0123456789"),
)


def load(raw: bytes, *, subject: str) -> Any:
    """Value of one YAML document.

    Raises:
        FormatError: Not UTF-8, not YAML, too large or too deep, an alias, a tag or a key twice.
    """
    if len(raw) > SIZE_MAX:
        raise FormatError(f"{subject}: expected at most {SIZE_MAX:,} bytes, got {len(raw):,}")
    try:
        return yaml.load(raw.decode(), Loader=_Loader)  # noqa: S506
    except FormatError as error:
        raise FormatError(f"{subject}: {error.message}", hint=error.hint) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"{subject}: expected YAML, got {_one_line(error)}") from error


def dump(value: Any) -> bytes:
    """Block YAML of plain values, keys in the order given; ``load`` reads the same value back."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
