"""The label in a real browser: accessibility rules hold, no letters meet, nothing is cut, it prints."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import escape, unescape
from pathlib import Path
from typing import Any

import onnx
import pytest

from pellucid.build import label
from pellucid.build.drawing import draw
from pellucid.build.drawing_graph import Graph, GraphNode, graph_of
from pellucid.core.recipe import effective, parse_recipe
from pellucid.testing.labels import DIGESTS, ENVIRONMENT, FACTS, measured_documents
from pellucid.testing.models import digits_like

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--virtual-time-budget=60000", "--window-size=1300,1000",
)  # fmt: skip
JUDGES = Path(__file__).resolve().parents[1] / "judges"
CSP = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
# Texts of one drawing whose boxes meet, texts outside their drawing, and what is wider than its place.
MEASURE = """
const found = {};
const meets = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2.5;
const measure = (name, doc) => {
  const bad = [];
  for (const svg of doc.querySelectorAll("svg")) {
    const out = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([said, box], at) => {
      if (box.left < out.left - 1 || box.right > out.right + 1 || box.bottom > out.bottom + 1)
        bad.push(["outside", said]);
      for (const [other, its] of texts.slice(at + 1)) if (meets(box, its)) bad.push(["meet", said, other]);
    });
    for (const rect of svg.querySelectorAll("g > rect:first-of-type")) {
      const text = rect.parentElement.querySelector("text.o");
      if (text && text.getBoundingClientRect().right > rect.getBoundingClientRect().right + 0.5)
        bad.push(["beyond its box", text.textContent]);
    }
  }
  const root = doc.scrollingElement;
  if (root.scrollWidth > root.clientWidth) bad.push(["page wider than the window", root.scrollWidth]);
  for (const e of doc.querySelectorAll("main *:not(svg *):not(.scroll *)"))
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth && !e.matches(".scroll, .no, caption"))
      bad.push(["cut", e.outerHTML.slice(0, 80), e.scrollWidth, e.clientWidth]);
  if (name === "paper") for (const e of doc.querySelectorAll(".scroll"))
    if (e.scrollWidth > e.clientWidth + 1) bad.push(["cut on paper", e.getAttribute("aria-label")]);
  found[name] = {bad, texts: doc.querySelectorAll("svg text").length, height: root.scrollHeight};
};
addEventListener("load", async () => {
  for (const frame of document.querySelectorAll("iframe")) {
    measure(frame.id, frame.contentDocument);
    if (frame.contentWindow.axe) {
      const said = await frame.contentWindow.axe.run();
      found.rules = said.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 120)).slice(0, 3)]);
      found.passed = said.passes.length;
    }
  }
  document.body.dataset.result = JSON.stringify(found);
});
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(CHROMIUM is None, reason="NOT RUN browser: chromium is not installed"),
]


@pytest.fixture(scope="module")
def axe() -> str:
    """Source of the accessibility rules."""
    done = subprocess.run(
        [sys.executable, str(JUDGES / "make_venvs.py"), "node"], capture_output=True, text=True, check=False
    )
    if done.returncode == 3:
        pytest.skip(f"NOT RUN axe: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return (Path(done.stdout.strip()) / "node_modules/axe-core/axe.min.js").read_text()


def large() -> tuple[Graph, dict[str, Any]]:
    """Thirty-four blocks of four branches, long names and all."""
    nodes, layers, last = [], [], "x"
    for block in range(34):
        ends = []
        for branch in range(4):
            name = f"stage{block // 9}/block_{block}/branch_{branch}/convolution_with_a_long_name"
            nodes += [GraphNode(name, "Conv", (last,), (name,), "FP32"),
                      GraphNode(f"{name}/act", "LeakyRelu", (name,), (f"{name}/act",), "FP16")]  # fmt: skip
            layers.append({"name": name, "op": "kgen", "nodes": [name, f"{name}/act"], "fused": True,
                           "precision": ("FP32", "FP16", "BF16", "INT8")[branch]})  # fmt: skip
            ends.append(f"{name}/act")
        last = f"concat_{block}"
        nodes.append(GraphNode(last, "Concat", tuple(ends), (last,), "FP32"))
        layers.append({"name": last, "op": "Concat", "nodes": [last], "fused": False, "precision": "FP32"})
    told = [{"name": n.name, "op": n.op} for n in nodes]
    facts = FACTS | {"nodes": told, "layers": layers, "fused_layers": 136, "eliminated": []}
    return Graph(tuple(nodes), (("x", "FP32 [-1, 3, 224, 224]"),), ((last, "FP32 [-1, 9]"),)), facts


def leaflet(*, big: bool) -> str:
    graph = graph_of(onnx.load_model_from_string(digits_like()))
    facts = FACTS
    if big:
        graph, facts = large()
    recipe = effective(
        parse_recipe(b"name: toy\nversion: 1.0.0\nbackend: onnxruntime\ntarget: cpu\nmodel: m.onnx\n")
    )
    drawing = draw(graph, facts["layers"], eliminated=facts["eliminated"], title="toy 1.0.0", tf32=big)
    parts = label.sections(
        recipe, facts, ENVIRONMENT, DIGESTS, {}, documents=measured_documents(), drawing=drawing
    )
    return label.page("toy 1.0.0", parts).decode()


def frame(name: str, width: int, page: str) -> str:
    return f'<iframe id="{name}" srcdoc="{escape(page)}" style="width:{width}px;height:900px"></iframe>'


def judge(tmp_path: Path, page: str, axe: str, *flags: str) -> dict[str, Any]:
    """The page at the widths of a desk, a phone and paper, and what the rules say of it."""
    bare, found = CSP.subn("", page)  # the judge itself is a script, which the label would not run
    assert found == 1
    paper = bare.replace("@media print", "@media all").replace("<details>", "<details open>")
    frames = [
        frame("desk", 1280, bare.replace("</body>", f"<script>{axe}</script></body>")),
        frame("phone", 390, bare),
        frame("paper", 688, paper),
    ]
    path = tmp_path / "judge.html"
    path.write_text(f'<!doctype html><meta charset="utf-8"><body>{"".join(frames)}<script>{MEASURE}</script>')
    done = run(tmp_path, "--dump-dom", *flags, path.as_uri())
    said = re.search(r'<body data-result="([^"]*)"', done)
    assert said, done[-400:]
    result: dict[str, Any] = json.loads(unescape(said[1]))
    return result


def run(tmp_path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("big", [False, True], ids=["digits", "large"])
def test_rules_hold_and_no_letters_meet(tmp_path: Path, axe: str, big: bool) -> None:
    said = judge(tmp_path, leaflet(big=big), axe, f"--blink-settings=preferredColorScheme={int(not big)}")
    assert said["rules"] == []
    assert said["passed"] > 15
    for name in ("desk", "phone", "paper"):
        assert said[name]["bad"] == [], name
        assert said[name]["texts"] > (300 if big else 60)


def test_the_judge_sees_what_is_wrong(tmp_path: Path, axe: str) -> None:
    page = leaflet(big=False)
    page = page.replace('<html lang="en">', "<html>").replace("--soft: #545d68", "--soft: #cccccc")
    page = page.replace(">Conv<", ">Conv that is far too long to stand in any box of the drawing<", 1)
    page = page.replace("</main>", '<p style="width:1400px">wide</p></main>')
    said = judge(tmp_path, page, axe, "--blink-settings=preferredColorScheme=1")
    assert {rule for rule, _ in said["rules"]} >= {"html-has-lang", "color-contrast"}
    kinds = {bad[0] for bad in said["phone"]["bad"]}
    assert kinds >= {"meet", "beyond its box", "page wider than the window"}


@pytest.mark.parametrize(("big", "pages"), [(False, (3, 7)), (True, (7, 16))], ids=["digits", "large"])
def test_it_prints_on_a_few_pages(tmp_path: Path, big: bool, pages: tuple[int, int]) -> None:
    page, paper = tmp_path / "label.html", tmp_path / "label.pdf"
    page.write_text(leaflet(big=big))
    run(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri())
    raw = paper.read_bytes()
    assert pages[0] <= len(re.findall(rb"/Type /Page\b", raw)) <= pages[1]
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^\]]*)\]", raw)}
    assert {(round(b[2]), round(b[3])) for b in boxes} <= {(595, 842), (596, 842), (595, 841)}


def test_the_page_stays_as_it_is_under_its_own_rule(tmp_path: Path) -> None:
    page = tmp_path / "label.html"
    page.write_text(leaflet(big=False).replace("</body>", "<script>document.title = 'ran'</script></body>"))
    assert "<title>toy 1.0.0: label</title>" in run(tmp_path, "--dump-dom", page.as_uri())
