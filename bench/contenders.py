"""Who is measured: pellucid in its modes, and the peers; each started afresh for a round."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from bodies import grpc_missing
from peers import peer
from peers.models import MODELS
from peers.process import Server

from pellucid.app.build import build, qualify
from pellucid.app.sign import sign_folder
from pellucid.app.site import Site, create_site, open_site
from pellucid.config import ServingSection
from pellucid.core import strict_yaml
from pellucid.testing.site import configure

# An orderly stop waits until the ledger has taken in its backlog; here the site is thrown away.
STOP_S: Final = 0.5
MODES: Final = {"off": "unsafe_record_nothing", "journaled": "journaled", "durable": "durable"}
VALIDATION_ROWS: Final = {"mlp30": 64, "cnn32": 16, "cnn96": 8, "img224": 4}
# Rows of one execution. Pictures: qualifying tries every slot of every bucket, 600 kB a row.
BUCKETS: Final = {
    "mlp30": [1, 2, 4, 8, 16, 32],
    "cnn32": [1, 2, 4, 8, 16],
    "cnn96": [1, 2, 4, 8],
    "img224": [1, 2, 4],
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the tables.

    Attributes:
        mode: How pellucid records; None for a peer.
        workers: pellucid's serving processes; Triton's instances a model.
        is_full: Every load, or only those that the question of this row needs.
    """

    name: str
    title: str
    mode: str | None = None
    workers: int = 1
    is_full: bool = True

    @property
    def peer(self) -> str:
        return self.name.partition("-x")[0]

    @property
    def is_here(self) -> bool:
        """Is the peer installed; has this pellucid the setting that the row is about?"""
        if self.mode is None:
            return peer.is_installed(self.peer)
        return self.workers == 1 or "workers" in ServingSection.__struct_fields__

    @property
    def forms(self) -> tuple[str, ...]:
        """What it speaks, as far as this environment can ask for it and check the answers."""
        if self.mode is None:
            spoken: tuple[str, ...] = peer.SPEAKS[self.peer]
        else:
            known = ServingSection.__struct_fields__
            spoken = ("json", "binary")
            # A region is known to the worker that was told, so only one worker can be asked.
            spoken += ("shm",) if "shared_memory" in known and self.workers == 1 else ()
            spoken += ("grpc",) if "grpc_port" in known else ()
        can_grpc = not grpc_missing() and peer.tool("h2load")[0] is not None
        return tuple(form for form in spoken if form != "grpc" or can_grpc)


CONTENDERS: Final = {
    c.name: c
    for c in (
        Contender("pellucid-off", "pellucid, recording off", "off"),
        Contender("pellucid", "pellucid, journaled (default)", "journaled"),
        Contender("pellucid-again", "pellucid, journaled, once more", "journaled", is_full=False),
        Contender("pellucid-durable", "pellucid, durable", "durable", is_full=False),
        Contender("pellucid-x2", "pellucid, journaled, 2 workers", "journaled", 2, is_full=False),
        Contender("pellucid-off-x2", "pellucid, recording off, 2 workers", "off", 2, is_full=False),
        Contender("triton", peer.TITLES["triton"]),
        Contender("triton-x2", "Triton (Python backend), 2 instances", None, 2, is_full=False),
        Contender("mlserver", peer.TITLES["mlserver"]),
        Contender("kserve", peer.TITLES["kserve"]),
        Contender("mosec", peer.TITLES["mosec"]),
    )
}


@dataclass(slots=True)
class Stable:
    """Where contenders are made: peers from their folders, pellucid from a copy of one built site."""

    scratch: Path
    models: Path
    cpus: str | None
    wanted: Sequence[str]
    _made: Site | None = field(default=None)

    def server(self, contender: Contender) -> Server:
        """A server of this contender that has never run."""
        if contender.mode is None:
            return peer.server(contender.peer, self.models, cpus=self.cpus, workers=contender.workers)
        root = self.scratch / "sites" / contender.name
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.made().root, root)
        known = ServingSection.__struct_fields__
        port = free_ports()
        serving: dict[str, Any] = {"port": port, "workers": contender.workers}
        serving |= {"grpc_port": port + 1} if "grpc_port" in known else {}
        serving |= {"shared_memory": True} if "shm" in contender.forms else {}
        ledger = {"record": MODES[contender.mode]}
        configure(open_site(root), serving={k: v for k, v in serving.items() if k in known}, ledger=ledger)
        command = [sys.executable, "-m", "pellucid", "serve", "--site", str(root), "--json"]
        environment = {"ORT_DISABLE_TELEMETRY": "1"}
        home = self.scratch / "homes" / contender.name
        return Server(contender.name, command, home, port, environment, self.cpus, STOP_S)

    def made(self) -> Site:
        """The site that all of pellucid's are copies of; built when it is first asked for."""
        self._made = self._made or make_site(self.scratch / "made", self.models, self.wanted)
        return self._made

    def forget(self, contender: Contender) -> None:
        shutil.rmtree(self.scratch / "sites" / contender.name, ignore_errors=True)


def free_ports() -> int:
    """A port for HTTP; the next one, for gRPC, is free as well."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first, contextlib.suppress(OSError):
            port: int = first.getsockname()[1]
            with socket.create_server(("127.0.0.1", port + 1)):
                return port


def make_site(root: Path, models: Path, wanted: Sequence[str]) -> Site:
    """A site that serves these models, built, signed and qualified as anyone's."""
    site = create_site(root, node="bench1")
    archives = []
    for name in wanted:
        folder = root / "recipes" / name
        folder.mkdir(parents=True)
        shutil.copy(models / f"{name}.onnx", folder / "model.onnx")
        sample = np.load(models / f"{name}.npy")
        generator = np.random.default_rng(1)
        rows = generator.random((VALIDATION_ROWS[name], *sample.shape[1:])).astype("<f4")
        input_name = json.loads((models / f"{name}.json").read_bytes())["inputs"][0]["name"]
        np.savez(folder / "validation.npz", allow_pickle=False, **{input_name: rows})
        (folder / "meaning.json").write_text(json.dumps(MODELS[name].meaning))
        recipe = {
            "name": name, "version": "1.0.0", "backend": "onnxruntime", "target": "cpu",
            "model": "model.onnx", "buckets": BUCKETS[name], "golden": {"count": 1, "seed": 7},
            "validation": {"data": "validation.npz"}, "meaning": "meaning.json",
        }  # fmt: skip
        (folder / "recipe.yaml").write_bytes(strict_yaml.dump(recipe))
        signed = sign_folder(site, build(site, folder / "recipe.yaml").folder)
        qualify(site, signed.archive)
        archives.append(f"packages/{signed.archive.name}")
    return configure(site, serving={"models": archives})
