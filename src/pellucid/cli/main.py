"""``pellucid``: the verbs, loaded only when used, and the one place that turns errors into exits."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from pellucid import __version__
from pellucid.cli import INTERRUPTED
from pellucid.core.words import printable
from pellucid.errors import DiskFullError, MissingExtraError, PellucidError, UsageError

VERBS: Final[dict[str, tuple[str, str]]] = {  # verb -> (module, one line of help)
    "init": ("init", "Make a site: keys, configuration, policy, folders."),
    "build": ("build", "Build an engine from a recipe, with its whole log."),
    "preflight": ("preflight", "Say all that would stand in the way of a build."),
    "job": ("job", "Write the manifests that build a recipe in a cluster or a pipeline."),
    "recalibrate": ("recalibrate", "Build a quantised package again with new calibration data."),
    "rebuild": ("rebuild", "Build an engine again from its package alone, and compare."),
    "sign": ("sign", "Sign a package folder and pack it."),
    "qualify": ("qualify", "Measure a package on this device and attest it."),
    "approve": ("approve", "Sign an approval for a package."),
    "verify": ("verify", "Check a package: signature, manifest, policy."),
    "diff": ("diff", "Compare two builds: what differs, what matters first."),
    "quant": ("quant", "Show how a model was quantised, and what a sample stands behind."),
    "inspect": ("inspect", "Show what is inside a package."),
    "serve": ("serve", "Serve admitted packages and record every call."),
    "call": ("call", "Call a served model."),
    "ledger": ("ledger", "Show, get, prove, check and erase ledger entries."),
    "why": ("why", "Say what changed before a model was slow."),
    "verbose": ("verbose", "Time the layers of a served model, for a while."),
    "baseline": ("baseline", "Show and freeze what a model's computation usually takes."),
    "replay": ("replay", "Run a past call again, in its bucket and slot."),
    "answer": ("answer", "Give the regulator's four answers about a call."),
    "export": ("export", "Write an evidence bundle that a stranger can check."),
    "keys": ("keys", "List, show and make keys."),
    "tokens": ("tokens", "Give out, list and take back API tokens."),
    "config": ("config", "Show and check the configuration in force."),
    "adapters": ("adapters", "List what can be plugged in."),
    "demo": ("demo", "Walk the whole chain on real data."),
}


class _Verbs(click.Group):
    """A group whose commands are imported on first use, so that ``--help`` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"pellucid.cli.{VERBS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pellucid")
def cli() -> None:
    """Auditable inference: every answer with its engine, its history and a proof.

    Exit codes: 0 it holds, 2 usage, 3 evidence does not hold, 4 policy refused, 5 build failed,
    6 replay differs, 70 ledger halted, 75 try again later, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result: Any = cli.main(argv, standalone_mode=False)
    except PellucidError as error:
        _fail(error, argv)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        if "--json" in argv:
            hint = (
                f"see: {error.ctx.command_path} --help"
                if isinstance(error, click.UsageError) and error.ctx
                else ""
            )
            _fail(UsageError(error.format_message(), hint=hint), argv)
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # the reader left (head, less); point stdout elsewhere so that the final flush is quiet
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as error:  # a file or folder that somebody named: theirs to put right
        _fail(_named(error), argv)
    except ModuleNotFoundError as error:
        if (error.name or "pellucid").partition(".")[0] == "pellucid":
            raise
        _fail(_missing(error, argv), argv)
    except _database_errors() as error:
        _fail(_of_database(error), argv)
    sys.exit(result if isinstance(result, int) else 0)


def _missing(error: ModuleNotFoundError, argv: Sequence[str]) -> PellucidError:
    verb = next((word for word in argv if word in VERBS), "")
    return MissingExtraError(
        f"pellucid {verb} needs the library {error.name!r}, which is not installed",
        hint="pip install 'pellucid[standard]'",
    )


def _database_errors() -> tuple[type[Exception], ...]:
    """SQLite's: none where nobody has loaded it."""
    loaded = sys.modules.get("sqlite3")
    return () if loaded is None else (loaded.Error,)


def _of_database(error: Exception) -> PellucidError:
    from pellucid.ledger.state import database_error

    return database_error(error, "ledger: expected its databases to work")  # type: ignore[arg-type]


def _named(error: OSError) -> PellucidError:
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
    place = error.filename if isinstance(error.filename, str) else "operating system"
    return kind(f"{place}: expected a usable file or folder, got {error.strerror or error}")


def _fail(error: PellucidError, argv: Sequence[str]) -> NoReturn:
    _report(error, argv)
    sys.exit(error.exit_code)


def _report(error: PellucidError, argv: Sequence[str]) -> None:
    if "--json" in argv:
        import json

        record = {"error": error.message, "code": error.code, "hint": error.hint}
        # standard output of a server is the operators' log
        click.echo(json.dumps(record, ensure_ascii=False), err=argv[0] == "serve")
        return
    style = {"fg": "red", "bold": True}
    # names of files and of a model's parts are whatever somebody called them
    click.echo(click.style("error: ", **style) + printable(error.message), err=True)  # type: ignore[arg-type]
    if error.hint:
        click.echo(click.style("hint: ", fg="cyan") + printable(error.hint), err=True)
