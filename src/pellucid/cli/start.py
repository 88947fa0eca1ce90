"""The process of a command line: whoever asks for its end, at any moment, is answered in words.

Ctrl-C and SIGTERM unwind what a verb has begun, so that its children, folders and the terminal are put
right; a verb that has its own way to end (``build``, ``serve``) listens itself while it works. A
request may come while modules are imported, where a library may swallow it or make another error of it:
it is remembered. This module imports next to nothing, since before it is loaded nobody listens.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

from pellucid.cli import INTERRUPTED

_AGAIN_S = 0.01
_COLLECTED_EVERY = 50_000  # measured: what a verb loads stays; looking through it is a twentieth of the start


class Ended(KeyboardInterrupt):
    """Somebody asked for the end.

    Not ``KeyboardInterrupt`` itself: the interpreter may note that one as unhandled where it is handled,
    and then dies by the signal, whatever exit code was chosen.
    """


_requests: list[int] = []


def main() -> None:
    """Run the command line's verb and exit with its code."""
    gc.set_threshold(_COLLECTED_EVERY)
    # what is still reachable at the end goes with the process: to look through it for cycles, again and
    # again while modules are taken apart, took longer than many a verb; all else that is to happen happens
    atexit.register(gc.freeze)
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
    import signal

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, _asked)
    try:
        from pellucid.cli.main import main as run

        run()
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)  # nothing is left to put right


def _asked(number: int, _frame: object) -> None:
    _requests.append(number)
    raise Ended


def _uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Whatever a library made of a request is that request."""
    if not (_requests or issubclass(kind, KeyboardInterrupt)):
        sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
        return
    sys.stdout.flush()
    sys.stderr.write("\ninterrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    """A request that came where nothing can be raised (in a finaliser) comes again a moment later."""
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    import signal
    import threading

    later = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True
    later.start()
