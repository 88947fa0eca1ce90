"""The HTTP door's one table: error class to status. A test fails if a class is missing."""

from __future__ import annotations

import inspect
from typing import Final

from pellucid import errors
from pellucid.errors import PellucidError

_OWN: Final[dict[type[PellucidError], int]] = {
    errors.PellucidError: 500,
    errors.UsageError: 400,
    errors.EncodingError: 415,
    errors.NotFoundError: 404,
    errors.VerificationError: 422,
    errors.PolicyDeniedError: 403,
    errors.BuildError: 500,
    errors.ReplayMismatchError: 409,
    errors.ErasedError: 410,
    errors.AuthError: 401,
    errors.ForbiddenError: 403,
    errors.LimitError: 413,
    errors.TooManyError: 429,
    errors.DeadlineError: 504,
    errors.UnavailableError: 503,
    errors.LedgerHaltedError: 500,
}


def _inherited(kind: type[PellucidError]) -> int:
    return next(_OWN[parent] for parent in kind.__mro__ if parent in _OWN)


STATUSES: Final[dict[type[PellucidError], int]] = {
    kind: _inherited(kind)
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PellucidError)
}
