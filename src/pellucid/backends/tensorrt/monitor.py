"""The builder's steps, told as they end; the answer may stop it.

Most of a build's time lies inside its last, opaque step: a stop takes effect at the next step only.
"""

from __future__ import annotations

from typing import Any

from pellucid.errors import BuildCancelledError, BuildError
from pellucid.ports import BuildProgress, Step


class Watch:
    """Hands steps on; a listener that says stop, or that fails, stops the build."""

    def __init__(self, progress: BuildProgress) -> None:
        self._progress = progress
        self._steps: dict[str, int] = {}
        self._stopped_in: str | None = None
        self._failure: BaseException | None = None

    def start(self, phase: str, steps: int) -> None:
        """A phase begins, of so many steps."""
        self._steps[phase] = steps

    def step(self, phase: str, step: int) -> bool:
        """A step ended, counted from 0; false when the builder shall stop. Never raises."""
        # the library cannot take an exception here
        try:
            goes_on = self._progress(Step(phase, step + 1, self._steps.get(phase, step + 1)))
        except BaseException as error:
            self._failure = self._failure or error
            goes_on = False
        if not goes_on and self._stopped_in is None:
            self._stopped_in = phase
        return bool(goes_on)

    def verify(self) -> None:
        """Fail when the build was stopped.

        Raises:
            BuildCancelledError: The listener asked for it.
            BuildError: The listener raised.
        """
        if self._failure is not None:
            raise BuildError(
                f"build progress: expected a listener, got {type(self._failure).__name__}: "
                f"{self._failure!s:.200}"
            ) from self._failure
        if self._stopped_in is not None:
            raise BuildCancelledError(
                f"build: expected to go on to its end, got a request to stop in {self._stopped_in!r:.80}"
            )


def make_monitor(trt: Any, watch: Watch) -> Any:
    """The library's own kind of monitor, with ``watch`` behind it; must live as long as the build."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, _parent_phase: str, num_steps: int) -> None:
            watch.start(phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return watch.step(phase_name, step)

        def phase_finish(self, _phase_name: str) -> None:
            pass  # its last step said so

    return Monitor()
