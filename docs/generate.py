"""Write the reference pages that are read off the code, so that they cannot grow old.

``make docs`` writes them; a test compares them with what is committed.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

HERE = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py from the code. Do not edit. -->\n\n"


def configuration() -> str:
    from pellucid import config

    text = [
        "# Configuration: `pellucid.toml`\n\n",
        inspect.getdoc(config) or "",
        "\n\n`pellucid config show` prints every value in force.\n",
    ]
    sections = [("", config.Config)]
    sections += [(f.name, f.type) for f in msgspec.structs.fields(config.Config) if _is_section(f.type)]
    for name, section in sections:
        text.append(f"\n## {f'`[{name}]`' if name else 'Top level'}\n\n{_prose(section)}\n\n")
        text.append("| key | type | default |\n|---|---|---|\n")
        text += [
            f"| `{field.name}` | {_type(field.type)} | `{_default(field)}` |\n"
            for field in msgspec.structs.fields(section)
            if not _is_section(field.type)
        ]
    return "".join(text)


def _is_section(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, msgspec.Struct)


def _prose(section: type) -> str:
    text = inspect.getdoc(section) or ""
    head, _, attributes = text.partition("Attributes:")
    lines = [line.strip() for line in attributes.strip().splitlines()]
    items: list[str] = []
    for line in lines:
        name, colon, rest = line.partition(": ")
        if colon and all(part.strip().isidentifier() for part in name.split(",")):
            items.append(f"- `{name}`: {rest}")
        elif line and items:
            items[-1] += " " + line
    return head.strip().replace("``", "`") + "\n\n" + "\n".join(items).replace("``", "`")


def _type(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind)) if not hasattr(kind, "__origin__") else str(kind)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else "required"


def errors() -> str:
    from pellucid import errors as tree
    from pellucid.servers.grpc.statuses import STATUSES as GRPC
    from pellucid.servers.http.statuses import STATUSES

    rows = ["# Errors\n\nOne tree; each door has one table. Messages read `subject: expected X, got Y`.\n\n"]
    rows.append("| error | code | exit | HTTP | gRPC | when |\n|---|---|---|---|---|---|\n")
    classes = [c for _, c in inspect.getmembers(tree, inspect.isclass)]
    for kind in sorted(classes, key=lambda c: [k.__name__ for k in reversed(c.__mro__)]):
        when = (kind.__dict__.get("__doc__") or "").strip().splitlines()
        indent = "&nbsp;&nbsp;" * (len(kind.__mro__) - 4)
        rows.append(
            f"| {indent}`{kind.__name__}` | `{kind.code}` | {kind.exit_code} | {STATUSES[kind]} "
            f"| {GRPC[kind].name} | {when[0] if when else ''} |\n"
        )
    return "".join(rows)


def commands() -> str:
    from pellucid.cli.main import VERBS, cli

    text = [
        "# Commands\n\nEverything answers to `--json`: one JSON object on standard output. An error is one "
        'too, `{"error", "code", "hint"}`, with the codes and exits of [errors](errors.md); only `serve` '
        "keeps standard output for the operators' log and writes it to standard error.\n\n"
    ]
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        text += _command(command, ["pellucid", verb], 2)
    return "".join(text)


def _command(command: click.Command, path: list[str], level: int) -> list[str]:
    context = click.Context(
        command, info_name=" ".join(path), terminal_width=96, max_content_width=96,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    text = [f"{'#' * level} `{' '.join(path)}`\n\n```\n{command.get_help(context)}\n```\n\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                text += _command(child, [*path, name], level + 1)
    return text


def adapters() -> str:
    from pellucid import schemes

    rows = ["# Adapters\n\nWhat can be plugged in: one file and one row of `schemes.py` each.\n\n"]
    rows.append("| kind | name | class | promise |\n|---|---|---|---|\n")
    for kind, table in schemes.KINDS.items():
        for name, where in table.items():
            rows.append(f"| {kind} | `{name}` | `{where}` | {_promise(where)} |\n")
    return "".join(rows)


def _promise(where: str) -> str:
    """First line of a class's docstring, read off its source: its library need not be installed."""
    module, _, name = where.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text()).body
    [found] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    return (ast.get_docstring(found) or "").partition("\n")[0]


def metrics() -> str:
    from pellucid.core import metrics as told

    text = [
        "# Metrics\n\nWith `serving.metrics_port` set, `GET /metrics` there answers in Prometheus' text. "
        "It listens on `serving.metrics_host`, loopback by default, and has the doors of the calls. Names "
        "that begin with `nv_` mean what they mean in Triton; what this server does not measure (compute "
        "input and output, power, energy) it does not tell. With several workers the parent answers: it "
        "adds up what each tells it once a second, and keeps what a worker that ended had counted.\n\n"
        "Histograms have powers of two of a nanosecond for bounds, from 33 us to 4.3 s.\n\n"
        "| name | kind | labels | what |\n|---|---|---|---|\n"
    ]
    for metric in told.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        text.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |\n")
    return "".join(text)


PAGES = {
    "configuration.md": configuration,
    "errors.md": errors,
    "commands.md": commands,
    "adapters.md": adapters,
    "metrics.md": metrics,
}


def main(folder: Path = HERE / "reference") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (folder / name).write_text(NOTE + write())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
