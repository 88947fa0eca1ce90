"""One tree of errors for the whole house; it knows no HTTP.

Every message reads ``subject: expected X, got Y``; a hint says what to do next. Bytes from outside
raise only from this tree. Each door keeps one table from these classes to its own statuses.
"""

from __future__ import annotations


class PellucidError(Exception):
    """What every room raises when it cannot do what it promised.

    Attributes:
        code: Stable word for machines (logs, ledger entries, JSON output).
        exit_code: Exit status of a command that ends with this error.
        hint: What the reader can do about it, or ``""``.
    """

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PellucidError):
    code, exit_code = "usage", 2


class ConfigError(UsageError):
    code = "config"


class FormatError(UsageError):
    """Bytes that are not what their format says (JSON, YAML, note, tile, archive)."""

    code = "format"


class EncodingError(FormatError):
    """A content encoding that a door does not speak (HTTP 415)."""

    code = "encoding"


class TensorError(UsageError):
    code = "tensor"


class RecipeError(UsageError):
    code = "recipe"


class PolicyFormatError(UsageError):
    code = "policy_format"


class UnknownSchemeError(UsageError):
    code = "unknown_scheme"


class MissingExtraError(UsageError):
    code = "missing_extra"


class KeyRefusedError(UsageError):
    code = "key_refused"


class NotFoundError(PellucidError):
    code, exit_code = "not_found", 2


class VerificationError(PellucidError):
    code, exit_code = "verification", 3


class DigestMismatchError(VerificationError):
    code = "digest_mismatch"


class SignatureError(VerificationError):
    code = "signature"


class ProofError(VerificationError):
    code = "proof"


class PackageError(VerificationError):
    """A package whose shape is not allowed: paths, links, twins, extra or missing files."""

    code = "package"


class ExpiredError(VerificationError):
    code = "expired"


class RollbackError(VerificationError):
    code = "rollback"


class CompletenessError(VerificationError):
    code = "incomplete"


class PolicyDeniedError(PellucidError):
    code, exit_code = "policy_denied", 4


class BuildError(PellucidError):
    code, exit_code = "build", 5


class ParseError(BuildError):
    code = "build_parse"


class PrecisionError(BuildError):
    code = "build_precision"


class GateError(BuildError):
    code = "build_gate"


class BuilderCrashedError(BuildError):
    code = "builder_crashed"


class BuildCancelledError(BuildError):
    """Somebody asked for the end of a build: nothing is wrong with the model."""

    code = "build_cancelled"


class ReplayMismatchError(PellucidError):
    code, exit_code = "replay_mismatch", 6


class ErasedError(PellucidError):
    """The value was erased on purpose; an erasure entry says when and under which rule."""

    code, exit_code = "erased", 6


class AuthError(PellucidError):
    code, exit_code = "auth", 4


class UnauthenticatedError(AuthError):
    """Nobody knows who calls."""

    code = "unauthenticated"


class ForbiddenError(AuthError):
    """Known, and not allowed."""

    code = "forbidden"


class LimitError(PellucidError):
    code, exit_code = "limit", 2


class TooManyError(LimitError):
    """Too many at once (HTTP 429); its parent means too large (HTTP 413)."""

    code = "too_many"


class RateError(TooManyError):
    """Faster than this caller may; ``retry_s`` says when to come again."""

    code = "rate"

    def __init__(self, message: str, *, retry_s: int = 1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_s = retry_s


class DeadlineError(PellucidError):
    code, exit_code = "deadline", 75


class UnavailableError(PellucidError):
    """Try again later; nothing was lost."""

    code, exit_code = "unavailable", 75


class DeviceUnavailableError(UnavailableError):
    """No device here that the engine was built for."""

    code = "device_unavailable"


class LedgerFullError(UnavailableError):
    code = "ledger_full"


class DiskFullError(UnavailableError):
    code = "disk_full"


class AnchorUnavailableError(UnavailableError):
    code = "anchor_unavailable"


class LedgerHaltedError(PellucidError):
    """The ledger stopped rather than write something it could not stand by; reopen it."""

    code, exit_code = "ledger_halted", 70


def by_code(code: str, otherwise: type[PellucidError]) -> type[PellucidError]:
    """Class of a code that crossed a process boundary; ``otherwise`` when nobody knows it."""
    waiting = [PellucidError]
    while waiting:
        found = waiting.pop()
        if found.code == code:
            return found
        waiting.extend(found.__subclasses__())
    return otherwise
