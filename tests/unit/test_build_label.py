"""The label: says what was measured and what was not, in both forms, and cannot be written by its subject."""

from __future__ import annotations

import copy
import itertools
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.build import label
from pellucid.build.label import plots
from pellucid.core.recipe import effective, parse_recipe
from pellucid.testing.labels import DIGESTS, ENVIRONMENT, FACTS, measured_documents

RECIPE = effective(
    parse_recipe(b"name: toy\nversion: 1.0.0\nbackend: onnxruntime\ntarget: cpu\nmodel: m.onnx\n")
)
SILENT = {"script", "link", "img", "iframe", "object", "embed", "form", "base"}


def made(
    documents: dict[str, Any] | None = None,
    *,
    facts: dict[str, Any] = FACTS,
    drawing: str = "",
    **changes: Any,
) -> list[label.Section]:
    meaning = {"description": "says which digit", "features": [{"name": "pixel", "unit": "grey"}]}
    return label.sections(
        RECIPE | changes, facts, ENVIRONMENT, DIGESTS, meaning, documents=documents or {}, drawing=drawing
    )


def rows(parts: list[label.Section], title: str) -> dict[str, str]:
    return dict(next(part for part in parts if part.title == title).rows)


def html(parts: list[label.Section]) -> str:
    return label.page("toy 1.0.0", parts).decode()


def test_what_nobody_measured_says_so() -> None:
    parts = made()
    assert rows(parts, "At a glance")["Decisions changed by the build"] == "not measured"
    assert rows(parts, "Precision and error")["Error against the source"].startswith(
        "not measured at the build"
    )
    assert rows(parts, "Precision and error")["First layer past the bound"] == "not measured"
    assert (
        "the recipe names no validation set" in rows(parts, "How well it agrees with its source")["Accuracy"]
    )
    assert "What it was calibrated on" not in [part.title for part in parts]
    lossy = rows(made(precision="int8"), "What it was calibrated on")
    assert lossy == {"Calibration": "not measured"}


def test_operators_of_a_graph_and_layers_of_an_engine_are_counted_by_their_own_names() -> None:
    parts = made(measured_documents(), facts=FACTS | {"source_nodes": 12, "quantized_ops_count": 4})
    composed, precise = (rows(parts, title) for title in ("What it is made of", "Precision and error"))
    assert composed["Operators of the source graph"] == "12"
    assert composed["Operators of the graph that the builder got"] == str(len(FACTS["nodes"]))
    assert composed["Engine layers that compute quantised"] == "4"
    assert precise["Operators of the graph that are quantised"] == "1"
    assert "Operators of the source graph" not in rows(made(), "What it is made of")


def test_weights_that_became_0_have_their_row() -> None:
    documents = measured_documents()
    lost = {"name": "w2", "elements": 4, "overflow": 0, "subnormal": 0, "flushed": 2, "max_abs": "1e-9"}
    documents["precision.json"]["initialisers"].append(lost)
    (part,) = (part for part in made(documents) if part.title == "Precision and error")
    assert dict(part.rows)["Weights that became 0"] == "2"
    (table,) = (table for table in part.tables if table.caption == "Weights that lose more than digits")
    assert [row[0] for row in table.rows] == ["w1", "w2"]
    assert table.head[4] == "Became 0"
    assert table.rows[1][4] == "2"


def test_it_is_called_as_before() -> None:
    parts = label.sections(RECIPE, FACTS, ENVIRONMENT, DIGESTS, {})
    assert label.page("toy", parts).startswith(b"<!doctype html>")
    assert label.markdown("toy", parts).startswith(b"# toy\n")


def test_numbers_become_words() -> None:
    parts = made(measured_documents())
    found = rows(parts, "How well it agrees with its source")
    assert found["Measured"] == "899 samples, the compiled graph through ONNX Runtime on a CPU"
    assert found["Decisions"] == (
        "3 of 899 differ from the source's (0.334 %); with 95 % confidence at most 0.86 % do"
    )
    assert found["Right answers (top-1)"] == "97.2 %; the source gives 97.3 %"
    assert found["Signal to noise (PSNR)"] == "41.27 dB"
    assert found["KL divergence"] == "mean 0.00034, 99.9 % below 0.0121, largest 0.0312"
    assert rows(parts, "Precision and error")["First layer past the bound"] == "softmax"
    held = rows(parts, "What it was calibrated on")
    assert held["Values outside the range"] == "at most 1.2 %, at tensor r2 of layer conv2"
    assert held["Times"] == "1998-07-01T00:00:00Z to 1998-07-31T00:00:00Z"


def test_warnings_come_second_and_hold_what_documents_warn_of() -> None:
    parts = made(measured_documents(), reasons=[{"choice": "tf32", "reason": "speed", "reviewer": "ann"}])
    assert [part.title for part in parts][:3] == ["At a glance", "What it does", "Warnings"]
    assert parts[2].tone == "warning"
    assert ("Chosen with a reason", "tf32: speed (ann)") in parts[2].rows
    assert any("night" in value for name, value in parts[2].rows if name == "Calibration")
    assert ("Precision", "7 weights too large for the chosen precision") in parts[2].rows
    assert ("Error", "the first layer past the bound is softmax") in parts[2].rows
    assert made()[2].tone == "calm"


def test_a_gpu_engine_has_no_claim_about_its_bits() -> None:
    parts = made(backend="tensorrt-rtx", target="sm89")
    assert any(name == "Bits" for name, _ in rows(parts, "Warnings").items())
    assert "nobody measured its bits yet" in rows(parts, "Where it runs")["Serve level"]


@pytest.mark.parametrize("mark", ["\u202e", "\u2066", "\u200b", "\x1b", "\ud800", "&#8238;", "\u2028"])
def test_nothing_unseen_stands_in_either_form(mark: str) -> None:
    documents = measured_documents()
    documents["accuracy.json"]["slices"][0]["value"] = f"night{mark}shift"
    parts = made(documents)
    text = label.markdown("toy", parts).decode()
    assert mark not in text
    assert "night" in text
    assert f"night{mark}shift" not in unescape(html(parts)) or mark.startswith("&")


def test_a_command_is_pasted_from_the_file_as_it_stands() -> None:
    text = label.markdown("toy", made()).decode()
    assert "| The engine alone | `sha256sum FOLDER/engine/*` |" in text
    assert f"| which must print | {DIGESTS['engine'][7:]} |" in text
    assert "`pellucid verify FOLDER --trust TRUST`" in text


def test_both_forms_say_the_same() -> None:
    parts = made(measured_documents(), drawing="<svg></svg>")
    text, page = label.markdown("toy", parts).decode(), unescape(html(parts))
    bare = re.sub(r"\\(.)", r"\1", text)
    for part in parts:
        cells = [cell for row in part.rows for cell in row] if part.tone != "calm" else []
        for table in part.tables:
            cells += [table.caption, *table.head, *(cell for row in table.rows for cell in row)]
        for cell in cells:
            assert cell in bare
            assert cell in page
    assert "drawing.svg in this package" in text
    assert "<svg" not in text


def test_every_plot_has_a_table_and_a_name() -> None:
    parts = made(measured_documents())
    for part in parts:
        assert len(part.tables) >= bool(part.figures)
        for figure in part.figures:
            assert re.search(r'role="img" aria-labelledby="(\w+)-title"><title id="\1-title">', figure.svg)
    ids = re.findall(r' id="([^"]+)"', html(parts))
    assert len(ids) == len(set(ids))


def test_nothing_is_loaded_and_nothing_runs() -> None:
    page = html(made(measured_documents(), drawing="<svg></svg>"))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(tag)
            assert not {name for name, _ in attrs if name.startswith("on") or name in ("src", "href")}

    Reader().feed(page)
    assert not SILENT & set(found)
    assert not re.search(r"@import|https?:|url\((?!#)", page)


def hostile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return (
        f"</td><b onclick=x>|`{value}\n# \u202e"
        if isinstance(value, str) and not value[:1].isdigit()
        else value
    )


def test_a_document_cannot_write_the_label() -> None:
    documents = {path: hostile(value) for path, value in measured_documents().items()}
    parts = made(documents)
    page, text = html(parts), label.markdown("toy", parts).decode()
    assert "<b onclick" not in page
    assert "\u202e" not in page
    assert not re.search(r"(?m)^# (?!toy$)", text)
    assert not re.search(r"(?<!\\)<b", text)


def without(value: Any, choose: st.DataObject) -> Any:
    """A document with keys left out here and there."""
    if isinstance(value, dict):
        return {k: without(v, choose) for k, v in value.items() if choose.draw(st.integers(0, 4))}
    if isinstance(value, list):
        return [without(item, choose) for item in value]
    return value


@given(st.data())
def test_a_missing_key_is_not_measured_and_never_a_failure(choose: st.DataObject) -> None:
    parts = made(without(copy.deepcopy(measured_documents()), choose), precision="int8")
    assert html(parts)
    assert "None" not in label.markdown("toy", parts).decode()


def test_long_tables_fold_and_say_what_they_leave_out() -> None:
    layers = [FACTS["layers"][0] | {"name": f"l{k}"} for k in range(400)]
    page = html(made(facts=FACTS | {"layers": layers}))
    assert "250 more: facts.json" in page
    assert "(150 rows)</summary>" in page
    assert len(page) < 60_000


def test_the_worst_are_plotted_and_the_first_past_the_bound_is_among_them() -> None:
    documents = measured_documents()
    edge = documents["accuracy.json"]["boundaries"][0]
    documents["accuracy.json"] |= {
        "boundaries": [edge | {"layer": f"l{k}", "error_relative": f"{k + 1}e-6"} for k in range(90)],
        "first_past_bound": "l3",
    }
    (figure,) = next(p for p in made(documents) if p.title == "Precision and error").figures
    names = re.findall(r'class="pn"[^>]*>([^<]+)', figure.svg)
    assert names == ["l3", *(f"l{k}" for k in range(51, 90))]
    assert "the 40 largest of 90" in figure.caption
    assert figure.svg.count('class="pb pm"') == 1


def test_what_is_nearly_one_does_not_read_as_one() -> None:
    documents = measured_documents()
    documents["accuracy.json"] |= {"cosine_min": "0.99999994", "top1": "0.99996", "psnr_db": "inf"}
    found = rows(made(documents), "How well it agrees with its source")
    assert found["Smallest cosine similarity"] == "0.99999994"
    assert found["Right answers (top-1)"].startswith("99.996 %")
    assert found["Signal to noise (PSNR)"] == "no difference at all"


# -- plots ----------------------------------------------------------------------------------------


def widths(svg: str) -> list[float]:
    return [float(w) for w in re.findall(r'<rect class="pb[^"]*"[^>]* width="([\d.]+)"', svg)]


def test_bars_are_as_long_as_their_values() -> None:
    one, two, nothing = widths(
        plots.bars("t", [plots.Bar("a", 0.1), plots.Bar("b", 0.2), plots.Bar("c", 0.0)], name="n", share=True)
    )
    assert two == pytest.approx(2 * one, abs=0.2)
    assert nothing == 1.5  # a sign that it is there


def test_a_logarithmic_axis_gives_each_power_of_ten_the_same_room() -> None:
    items = [plots.Bar(str(k), 10.0**-k) for k in range(1, 5)]
    found = widths(plots.bars("t", items, name="n", logarithmic=True))
    steps = [a - b for a, b in itertools.pairwise(found)]
    assert max(steps[:-1]) - min(steps[:-1]) < 0.3


def test_a_range_lies_on_both_sides_of_zero() -> None:
    svg = plots.spans("t", [("a", -1.0, 1.0), ("b", 0.0, 100.0), ("c", -100.0, 0.0)], name="n")
    starts = [float(x) for x in re.findall(r'<rect class="pb" x="([\d.]+)"', svg)]
    both, right, left = zip(starts, widths(svg), strict=True)
    middle = right[0]
    assert both[0] + both[1] / 2 == pytest.approx(middle, abs=0.2)
    assert left[0] + left[1] == pytest.approx(middle, abs=0.2)


@given(st.lists(st.tuples(st.text(max_size=30), st.floats(0, 1e30), st.floats(0, 1e30)), max_size=12))
def test_any_number_has_a_place(items: list[tuple[str, float, float]]) -> None:
    bars = [plots.Bar(name, value, upper=upper, text="x") for name, value, upper in items]
    ends = [(name, -max(a, b), min(a, b)) for name, a, b in items]
    for svg in (
        plots.bars("t", bars, name="n"), plots.bars("t", bars, name="n", logarithmic=True),
        plots.bars("t", bars, name="n", share=True), plots.spans("t", ends, name="n"),
    ):  # fmt: skip
        numbers = [float(x) for x in re.findall(r' x="(-?[\d.]+)"', svg)]
        assert all(0 <= x <= plots.WIDTH for x in numbers)
        assert not re.search(r'="[^"]*\b(nan|inf)', re.sub(r"<t(itle|ext).*?</t(itle|ext)>", "", svg))
