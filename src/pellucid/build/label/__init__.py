"""The label: one page a person can read, like a medicine's leaflet; Markdown and plain HTML.

Rules of this folder: pure, the same bytes for the same package; every value from outside is
escaped; the HTML loads nothing from anywhere and runs no script; what nobody measured says so; what
a drawing or plot shows stands in a table too, and both forms say the same. Source: requirement B10;
spec/package.md, section 12.
"""

from __future__ import annotations

from pellucid.build.label.content import Figure, Section, Table
from pellucid.build.label.html_form import page
from pellucid.build.label.markdown_form import markdown
from pellucid.build.label.sections import sections

__all__ = ["Figure", "Section", "Table", "markdown", "page", "sections"]
