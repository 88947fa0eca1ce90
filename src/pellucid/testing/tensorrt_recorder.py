"""A module seen through glass: passes everything on and writes down which names were used, and how.

For TensorRT's modules and their stand-in: classes become proxies, so do the objects they make; what
goes into the library is unwrapped first, since it takes its own objects only.
"""

from __future__ import annotations

from typing import Any, Final

Used = dict[str, set[int]]  # "IBuilderConfig.set_flag" -> how many arguments; none for a value
_SUBCLASSED: Final = ("ILogger", "IProgressMonitor")
_PLAIN: Final = ("IHostMemory", "Dims")  # read as bytes and as numbers


class Recorder:
    """Proxy of a module.

    Attributes:
        used: What was used so far.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self.used: Used = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if not isinstance(value, type):
            return value
        self.note(name)
        return value if name in _SUBCLASSED else _Class(self, value)

    def note(self, name: str, arguments: int | None = None) -> None:
        """Write down one use."""
        self.used.setdefault(name, set()).update(() if arguments is None else (arguments,))

    def wrapped(self, value: Any) -> Any:
        """A proxy of an object of the module; anything else as it is."""
        kind = type(value)
        is_ours = getattr(self._module, kind.__name__, None) is kind
        if not is_ours or kind.__name__ in _PLAIN or hasattr(kind, "__members__"):
            return value
        return _Object(self, value)


class _Class:
    def __init__(self, recorder: Recorder, kind: type) -> None:
        self.__dict__.update(_recorder=recorder, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._kind, name)
        if name != "__members__":
            self._recorder.note(f"{self._kind.__name__}.{name}")
        return value

    def __call__(self, *arguments: Any) -> Any:
        if not hasattr(self._kind, "__members__"):
            self._recorder.note(f"{self._kind.__name__}.__init__", len(arguments))
        return self._recorder.wrapped(self._kind(*map(_bare, arguments)))


class _Object:
    def __init__(self, recorder: Recorder, value: Any) -> None:
        self.__dict__.update(_recorder=recorder, _value=value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._value, name)
        full = f"{type(self._value).__name__}.{name}"
        if not callable(found):
            self._recorder.note(full)
            return self._recorder.wrapped(found)

        def call(*arguments: Any) -> Any:
            self._recorder.note(full, len(arguments))
            return self._recorder.wrapped(found(*map(_bare, arguments)))

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        self._recorder.note(f"{type(self._value).__name__}.{name}")
        setattr(self._value, name, _bare(value))


def _bare(value: Any) -> Any:
    return value._value if isinstance(value, _Object) else value
