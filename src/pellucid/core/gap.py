"""How far one tensor is from another over many rows, as running sums: no row needs to be kept.

Pure definitions; whoever has arrays may add faster, and a test holds it to these.
Source: spec/accuracy.md, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Gap(msgspec.Struct):
    """Sums over the elements of one tensor, source against measured.

    A pair of numbers that are not finite but the same (both NaN, both the same infinity) counts as
    equal and enters no sum; any other pair with one that is not finite makes ``largest`` infinite.

    Attributes:
        elements: Pairs seen.
        squares, source_squares, measured_squares, dot: Sums of ``(a-b)**2``, ``a*a``, ``b*b``, ``a*b``.
        largest: Largest ``|a-b|``.
        low, high: Smallest and largest source value.
        cosines: Cosine of each row.
    """

    elements: int = 0
    squares: float = 0.0
    source_squares: float = 0.0
    measured_squares: float = 0.0
    dot: float = 0.0
    largest: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    cosines: list[float] = msgspec.field(default_factory=list)

    def add(self, source: Sequence[float], measured: Sequence[float]) -> None:
        """Add one row."""
        pairs = [(float(a), float(b)) for a, b in zip(source, measured, strict=True)]
        both = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        odd = [(a, b) for a, b in pairs if not (math.isfinite(a) and math.isfinite(b))]
        self.elements += len(pairs)
        if any(a != b and not (math.isnan(a) and math.isnan(b)) for a, b in odd):
            self.largest = math.inf
        here = [math.fsum(v) for v in zip(*((a * a, b * b, a * b) for a, b in both), strict=True)]
        aa, bb, ab = here or (0.0, 0.0, 0.0)
        self.squares += math.fsum((a - b) ** 2 for a, b in both)
        self.source_squares += aa
        self.measured_squares += bb
        self.dot += ab
        self.largest = max([self.largest, *(abs(a - b) for a, b in both)])
        self.low = min([self.low, *(a for a, _ in both)])
        self.high = max([self.high, *(a for a, _ in both)])
        self.cosines.append(cosine(ab, aa, bb))

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.largest) and math.isfinite(self.squares)

    @property
    def rms(self) -> float:
        """Root of the mean squared error; 0 when nothing was seen."""
        return math.sqrt(self.squares / self.elements) if self.elements else 0.0

    @property
    def relative_rms(self) -> float:
        """``rms`` over the source's own; 0 when both are 0, infinite when only the source's is."""
        if self.squares == 0.0:
            return 0.0 if self.is_finite else math.inf
        if self.source_squares == 0.0 or not (self.is_finite and math.isfinite(self.source_squares)):
            return math.inf
        return math.sqrt(self.squares / self.source_squares)

    @property
    def cosine(self) -> float:
        """Cosine of all rows as one vector."""
        return cosine(self.dot, self.source_squares, self.measured_squares)

    @property
    def psnr_db(self) -> float:
        """Peak signal to noise in dB; the peak is the source's range, or its magnitude if it never varies.

        Infinite when nothing differs; minus infinite when there is an error and no signal.
        """
        if not self.is_finite:
            return -math.inf
        if self.squares == 0.0:
            return math.inf
        peak = self.high - self.low or abs(self.high)
        noise = self.squares / self.elements
        return 20.0 * math.log10(peak) - 10.0 * math.log10(noise) if peak > 0.0 else -math.inf


def cosine(dot: float, source_squares: float, measured_squares: float) -> float:
    """Cosine of two vectors from their sums: 1 when both are zero, 0 when only one is or a sum overflowed."""
    if not all(map(math.isfinite, (dot, source_squares, measured_squares))):
        return 0.0  # the quotient would be NaN, and read as a perfect match
    if source_squares == 0.0 or measured_squares == 0.0:
        return 1.0 if source_squares == measured_squares else 0.0
    return max(-1.0, min(1.0, dot / (math.sqrt(source_squares) * math.sqrt(measured_squares))))
