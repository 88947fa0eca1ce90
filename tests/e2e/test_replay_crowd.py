"""Calls of sixteen clients to two models, as JSON, binary and over gRPC: every one replays bit for bit.

``PELLUCID_CROWD=10000`` plays the same with ten thousand.
"""

from __future__ import annotations

import collections
import http.client
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pellucid.app.build import isolated
from pellucid.app.evidence import replay
from pellucid.app.ledger import open_ledger
from pellucid.app.site import Site
from pellucid.core.entry import parse_entry
from pellucid.core.tensor import Tensor, rows
from pellucid.core.trust import TrustedPackage, verify_package
from pellucid.errors import ReplayMismatchError
from pellucid.guardian.open import open_package
from pellucid.ports import IsolatedRun
from pellucid.replay.replay import Past, replay_call
from pellucid.servers.grpc.messages import SERVICE, message_class
from pellucid.testing.models import digits_like
from pellucid.testing.server import ServerProcess, serving
from pellucid.testing.site import add_package, configure, make_site

pytestmark = pytest.mark.e2e

CLIENTS, CALLS = 16, int(os.environ.get("PELLUCID_CROWD", "500"))
Sent = dict[str, np.ndarray]


class OneProcess:
    """``ports.Isolated`` that gathers batches first and then runs all of them in one real child.

    A child a call is what the product does; five hundred of them would only test the patience of
    who waits. The first pass notes each batch, the second gives out what the child computed.
    """

    def __init__(self, package: TrustedPackage) -> None:
        self.package = package
        self.batches: list[list[Tensor]] = []
        self.answers: Iterator[list[Tensor]] | None = None
        self.run: IsolatedRun | None = None

    def infer(
        self, backend: str, engine: bytes, recipe: Mapping[str, Any], batches: Sequence[Sequence[Tensor]]
    ) -> IsolatedRun:
        (batch,) = batches
        if self.answers is None or self.run is None:
            self.batches.append(list(batch))
            raise GatheredError
        return IsolatedRun([next(self.answers)], self.run.environment, self.run.describe)

    def compute(self) -> None:
        engine, recipe = self.package.engine, self.package.recipe
        self.run = isolated().infer(self.package.manifest.backend, engine, recipe, self.batches)
        self.answers = iter(self.run.outputs)


class GatheredError(Exception):
    """The batch is noted; nothing ran."""


MODELS = {"digits": ("image", (1, 8, 8)), "credit": ("features", (20,))}


def over_http(connection: http.client.HTTPConnection, model: str, rows: np.ndarray, *, binary: bool) -> str:
    """One call; gives its key."""
    item: dict[str, Any] = {"name": MODELS[model][0], "shape": list(rows.shape), "datatype": "FP32"}
    headers = {}
    if binary:
        head = json.dumps({"inputs": [item | {"parameters": {"binary_data_size": rows.nbytes}}]}).encode()
        body, headers = head + rows.tobytes(), {"inference-header-content-length": str(len(head))}
    else:
        body = json.dumps({"inputs": [item | {"data": rows.ravel().tolist()}]}).encode()
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    reply.read()
    return str(reply.headers["pellucid-call"])


def over_grpc(infer: Any, model: str, rows: np.ndarray) -> str:
    """One call; gives its key."""
    given = {"name": MODELS[model][0], "datatype": "FP32", "shape": list(rows.shape)}
    message = message_class("ModelInferRequest")(
        model_name=model, inputs=[given], raw_input_contents=[rows.tobytes()]
    )
    _, told = infer(message.SerializeToString(), timeout=30)
    return str(dict(told.trailing_metadata())["pellucid-call"])


def crowd(server: ServerProcess) -> Sent:
    """Key of each call, and the rows it sent: one to three, to either model, in all three ways."""
    sent: Sent = {}
    numbers = itertools.count()

    def one(generator: np.random.Generator) -> None:
        address = f"127.0.0.1:{server.ready['beside']['grpc']}"
        with (
            closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection,
            grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel,
        ):
            infer = channel.unary_unary(f"/{SERVICE}/ModelInfer").with_call
            while (number := next(numbers)) < CALLS:
                model = ("digits", "digits", "credit")[number % 3]
                rows = generator.random((int(generator.integers(1, 4)), *MODELS[model][1]), dtype=np.float32)
                if number % 5 == 4:
                    key = over_grpc(infer, model, rows)
                else:
                    key = over_http(connection, model, rows, binary=bool(number % 2))
                sent[key] = rows

    threads = [threading.Thread(target=one, args=(np.random.default_rng(i),)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(sent) == CALLS
    return sent


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Sent]:
    samples = np.random.default_rng(3).random((100, 1, 8, 8), dtype=np.float32)
    site = make_site(
        tmp_path_factory.mktemp("crowd") / "site",
        model=digits_like,
        name="digits",
        meaning={},
        samples={"image": samples},
        recipe={"buckets": [1, 2, 4, 8, 16]},
        serving={"batch_delay_us": 2000},  # clients in this same process need a moment to meet
    )
    archive = add_package(site, recipe={"buckets": [1, 4, 16]})
    site = configure(site, serving={"models": [*site.config.serving.models, f"packages/{archive.name}"]})
    with serving(site.root) as server:
        sent = crowd(server)
    return site, sent


def pasts(site: Site, sent: Sent) -> list[tuple[Past, dict[int, tuple[Tensor, ...]]]]:
    found = []
    with closing(open_ledger(site)) as ledger:
        for raw in ledger.reader.entries(0, ledger.reader.size()):
            entry = parse_entry(raw)
            if entry.type == "call":
                given = sent[entry.id]
                name = MODELS[entry.data["model"]][0]
                whole = Tensor(name, "FP32", given.shape, given.tobytes())
                found.append((Past(entry, ledger.reader.openings(entry.id)), dict(enumerate(rows([whole])))))
    return found


def test_every_call_of_the_crowd_replays_bit_exact(day: tuple[Site, Sent]):
    site, sent = day
    calls = pasts(site, sent)
    assert len(calls) == CALLS
    shared = collections.Counter(past.entry.data["batch"] is not None for past, _ in calls)
    assert shared[True] >= CALLS / 3
    for model in MODELS:
        (archive,) = site.packages_folder.glob(f"{model}-*.tar.gz")
        package = verify_package(open_package(archive), site.trust())
        those = [each for each in calls if each[0].entry.data["model"] == model]
        assert len(those) >= CALLS // 3
        assert replayed(package, those) == {"bit-exact": len(those)}
        assert len({(p.entry.data["bucket"], p.entry.data["slot"]) for p, _ in those}) > 5


def replayed(
    package: TrustedPackage, calls: list[tuple[Past, dict[int, tuple[Tensor, ...]]]]
) -> collections.Counter[str]:
    """Verdicts of these calls, all run in one child."""
    together = OneProcess(package)
    for past, given in calls:
        with pytest.raises(GatheredError):
            replay_call(past, given, package, together)
    together.compute()
    return collections.Counter(replay_call(past, given, package, together).verdict for past, given in calls)


def test_one_of_them_through_the_whole_product_and_with_another_input(day: tuple[Site, Sent], tmp_path: Path):
    site, sent = day
    key, images = next((key, images) for key, images in sent.items() if images.shape == (2, 1, 8, 8))
    item = {"name": "image", "shape": list(images.shape), "datatype": "FP32"}
    original = json.dumps({"inputs": [item | {"data": images.ravel().tolist()}]}).encode()
    done = replay(site, key, original)
    assert done.result.verdict == "bit-exact"
    assert len(done.result.rows) == 2
    assert replay(site, key, original, row=1).result.verdict == "bit-exact"
    other = json.dumps({"inputs": [item | {"data": np.flip(images).ravel().tolist()}]}).encode()
    with pytest.raises(ReplayMismatchError, match="expected the original input"):
        replay(site, key, other)
