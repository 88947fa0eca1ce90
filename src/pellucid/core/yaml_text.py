"""YAML as people write it, read without surprises: one document, no aliases, no tags, no twins.

Aliases are refused because a few lines of them unfold to gigabytes; duplicate keys because the
last one would win in silence; dates and octal numbers stay what they look like.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from pellucid.errors import FormatError, PellucidError

SIZE_MAX: Final = 2**20  # limit: policies and recipes are pages, not megabytes
DEPTH_MAX: Final = 24
NODES_MAX: Final = 50_000
_SCALARS: Final = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}


class _Loader(yaml.SafeLoader):
    """SafeLoader that leaves dates as text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag in _SCALARS]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(
    raw: bytes, *, subject: str, error: type[PellucidError] = FormatError, size_max: int = SIZE_MAX
) -> dict[str, Any]:
    """Mapping of one YAML document.

    Args:
        raw: The file's bytes, UTF-8.
        subject: Named in messages.
        error: Class of the tree to raise.

    Raises:
        error: Not YAML, not a mapping, an alias, a tag, a duplicate or non-text key, too deep or large.
    """
    if len(raw) > size_max:
        raise error(f"{subject}: expected at most {size_max:,} bytes, got {len(raw):,}")
    try:
        text = raw.decode()
        _check_events(text, subject, error)
        node = yaml.compose(text, Loader=_Loader)
        if not isinstance(node, yaml.MappingNode):
            raise error(f"{subject}: expected a YAML mapping, got {getattr(node, 'id', 'nothing')}")
        _check_node(node, subject, error)
        value: dict[str, Any] = _Loader("").construct_document(node)
    except UnicodeDecodeError as failure:
        raise error(f"{subject}: expected UTF-8, got other bytes at {failure.start:,}") from failure
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as failure:
        raise error(
            f"{subject}: expected valid YAML, got {' '.join(str(failure).split())[:300]}"
        ) from failure
    return value


def _check_events(text: str, subject: str, error: type[PellucidError]) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise error(f"{subject}: expected no anchors or aliases, got one at line {_line(event)}")
        if tag := getattr(event, "tag", None):
            raise error(f"{subject}: expected no tags, got {tag!r:.60} at line {_line(event)}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX or count > NODES_MAX:
            raise error(f"{subject}: expected at most {DEPTH_MAX} levels and {NODES_MAX:,} nodes, got more")


def _line(part: Any) -> int:
    return int(part.start_mark.line) + 1


def _check_node(node: yaml.Node, subject: str, error: type[PellucidError]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_node(item, subject, error)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.tag != "tag:yaml.org,2002:str":
            raise error(f"{subject}: expected keys of text, got {key.value!r:.60} at line {_line(key)}")
        if key.value in seen:
            raise error(
                f"{subject}: expected each key once, got {key.value!r:.60} again at line {_line(key)}"
            )
        seen.add(key.value)
        _check_node(value, subject, error)
