"""The gRPC door's one table: error class to status. A test fails if a class is missing."""

from __future__ import annotations

import inspect
from enum import IntEnum
from typing import Final

from pellucid import errors
from pellucid.errors import PellucidError


class StatusCode(IntEnum):
    """Statuses of gRPC, by its own names and numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_OWN: Final[dict[type[PellucidError], StatusCode]] = {
    errors.PellucidError: StatusCode.INTERNAL,
    errors.UsageError: StatusCode.INVALID_ARGUMENT,
    errors.NotFoundError: StatusCode.NOT_FOUND,
    errors.VerificationError: StatusCode.FAILED_PRECONDITION,
    errors.PolicyDeniedError: StatusCode.PERMISSION_DENIED,
    errors.BuildError: StatusCode.INTERNAL,
    errors.ReplayMismatchError: StatusCode.ABORTED,
    errors.ErasedError: StatusCode.NOT_FOUND,
    errors.AuthError: StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: StatusCode.PERMISSION_DENIED,
    errors.LimitError: StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineError: StatusCode.DEADLINE_EXCEEDED,
    errors.UnavailableError: StatusCode.UNAVAILABLE,
    errors.LedgerHaltedError: StatusCode.INTERNAL,
}


def _inherited(kind: type[PellucidError]) -> StatusCode:
    return next(_OWN[parent] for parent in kind.__mro__ if parent in _OWN)


STATUSES: Final[dict[type[PellucidError], StatusCode]] = {
    kind: _inherited(kind)
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PellucidError)
}
