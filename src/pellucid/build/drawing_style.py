"""Colours and letters of a drawing: readable in light, dark and print, and without seeing colours.

The palette is Okabe and Ito's (2008), made for all common kinds of colour blindness; letters on a
colour have a contrast of at least 4.5 to 1.
"""

from __future__ import annotations

from typing import Final

# css class -> (datatypes, short letters, words of the legend)
KINDS: Final[dict[str, tuple[tuple[str, ...], str, str]]] = {
    "k32": (("FP32", "FP64"), "32", "FP32"),
    "ktf": (("TF32",), "TF", "TF32 allowed"),
    "k16": (("FP16",), "16", "FP16"),
    "kbf": (("BF16",), "BF", "BF16"),
    "ki8": (("INT8", "UINT8"), "I8", "INT8"),
    "kel": ((), "..", "other"),
}
_CLASS: Final = {kind: css for css, (kinds, _, _) in KINDS.items() for kind in kinds}


def kind_of(precision: str) -> tuple[str, str]:
    """Letters and class of a datatype."""
    return precision[:5], _CLASS.get(precision, "kel")


_COLOURS: Final = (
    ".pd .k32{--k:#0072b2;--kt:#fff}.pd .ktf{--k:#56b4e9;--kt:#111}.pd .k16{--k:#009e73;--kt:#111}"
    ".pd .kbf{--k:#f0e442;--kt:#111}.pd .ki8{--k:#d55e00;--kt:#111}.pd .kel{--k:#8f959c;--kt:#111}"
)
_LIGHT: Final = "--i:#1b1f24;--s:#565f6a;--p:#fff;--w:#f3f5f7;--l:#7b8590"
_DARK: Final = "--i:#e8eaed;--s:#a3acb6;--p:#16191d;--w:#22272d;--l:#7e8893"
CSS: Final = (
    f".pd{{{_LIGHT};color:var(--i);font:11.5px system-ui,sans-serif;max-width:100%;height:auto}}"
    f"@media (prefers-color-scheme:dark){{.pd{{{_DARK}}}}}@media print{{.pd{{{_LIGHT}}}}}"
    f"{_COLOURS}"
    ".pd text{fill:var(--i)}.pd .o{font-weight:600}.pd .s{font-weight:400;fill:var(--s)}"
    ".pd .k{font-size:11px}.pd .j{fill:var(--l)}"
    ".pd .h{font-size:15px;font-weight:700}"
    ".pd .b{fill:color-mix(in srgb,var(--k,#888) 11%,var(--p));stroke:var(--l);stroke-width:1}"
    ".pd .fused{stroke:var(--i);stroke-width:2.2}"
    ".pd .f{fill:var(--w);stroke:var(--i);stroke-width:2.2}"
    ".pd .gone{fill:none;stroke:var(--l);stroke-width:1;stroke-dasharray:4 3}.pd .gone~text,"
    ".pd .gone~text tspan{fill:var(--s)}"
    ".pd .e{fill:var(--p);stroke:var(--l);stroke-width:1}"
    ".pd .n{fill:var(--i)}.pd .nt{fill:var(--p);font-size:10.3px;font-weight:700}"
    ".pd .c{fill:var(--k)}.pd .ct{fill:var(--kt);font-size:10px;font-weight:700}"
    ".pd .l{fill:none;stroke:var(--l);stroke-width:1.3}.pd .r{stroke:var(--l);stroke-width:.6}"
    ".pd .t{fill:var(--i);font-size:10.5px;font-style:italic}"
    ".pd.dense{font-size:9.5px}.pd.dense .nt{font-size:8.5px}.pd.dense .ct{font-size:8.5px}"
    ".pd.dense .t{font-size:9.5px}"
)
