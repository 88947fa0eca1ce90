#!/usr/bin/env python3
"""Install, list, check and stop the servers that pellucid is measured against.

    peer.py install [NAME...]     own virtual environment each, pinned versions; and the load tools
    peer.py smoke [NAME...]       start, right answers, loopback only, 1 s of load, stop
    peer.py list
    peer.py stop [NAME...]        what an aborted run left behind

NAME is one of: triton mlserver kserve mosec; all when none is given. Everything that is written goes to
the folder that PELLUCID_PEERS_DIR names (default: .peers beside bench/).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.process import Server

HERE: Final = Path(__file__).resolve().parent
NAMES: Final = ("triton", "mlserver", "kserve", "mosec")
TITLES: Final = {
    "triton": "Triton (Python backend)", "mlserver": "MLServer", "kserve": "KServe", "mosec": "Mosec"
}  # fmt: skip
PORTS: Final = {"triton": 31000, "mlserver": 31100, "kserve": 31400, "mosec": 31600}
SPEAKS: Final = {
    "triton": ("json", "binary", "shm", "grpc"), "mlserver": ("json", "grpc"),
    "kserve": ("json", "binary", "grpc"), "mosec": ("json",),
}  # fmt: skip
DEBIAN_TOOLS: Final = (
    *("wrk", "libluajit-5.1-2", "libluajit-5.1-common"),
    *("nghttp2-client", "libev4", "libc-ares2", "libjemalloc2"),
)


def folder() -> Path:
    """Where peers, models and logs live."""
    return Path(os.environ.get("PELLUCID_PEERS_DIR") or HERE.parents[1] / ".peers").resolve()


def environment(name: str) -> Path:
    return folder() / name / "venv"


def is_installed(name: str) -> bool:
    stamp = environment(name) / "installed"
    return stamp.exists() and stamp.read_bytes() == (HERE / name / "requirements.txt").read_bytes()


def asked_for(name: str) -> list[str]:
    """The pinned packages that were asked for; the others follow from them."""
    return re.findall(r"\S+==\S+", (HERE / name / "requirements.txt").read_text().split("\n", 1)[0])


def install(name: str) -> None:
    """A virtual environment of its own: the peers' pins cannot be met together."""
    if is_installed(name):
        return
    venv, log = environment(name), folder() / name / "install.log"
    requirements = HERE / name / "requirements.txt"
    venv.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("wb") as out:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(venv)],
            [str(venv / "bin/python"), "-m", "pip", "install", "--no-input", "-r", str(requirements)],
        ):
            if subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode:
                raise ChildProcessError(f"{name}: installing failed, see {log}")
    shutil.copyfile(requirements, venv / "installed")
    print(f"{name}: installed in {time.monotonic() - began:.0f} s", file=sys.stderr)


def install_tools() -> None:
    """Debian's wrk and h2load, unpacked below the folder when the machine has none. Needs no root."""
    root = folder() / "tools"
    if all(tool(name)[0] for name in ("wrk", "h2load")):
        return
    debs = root / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    command = ["apt-get", "download", "-q", *DEBIAN_TOOLS]
    if subprocess.run(command, cwd=debs, stdout=subprocess.DEVNULL).returncode:
        raise ChildProcessError("apt-get download failed: 'apt-get install wrk nghttp2-client' does as well")
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)


def tool(name: str) -> tuple[str | None, dict[str, str]]:
    """The path of a load tool, if there is one, and the environment it needs."""
    found = shutil.which(name)
    if found:
        return found, dict(os.environ)
    root = folder() / "tools"
    path = root / "usr/bin" / name
    if not path.exists():
        return None, dict(os.environ)
    libraries = ":".join(str(p) for p in sorted((root / "usr/lib").glob("*-linux-gnu")))
    jit = ";".join(str(p / "?.lua") for p in sorted((root / "usr/share").glob("luajit-*")))
    return str(path), os.environ | {"LD_LIBRARY_PATH": libraries, "LUA_PATH": jit + ";;"}


def server(name: str, models: Path, *, cpus: str | None = None, workers: int = 1) -> Server:
    """A peer, ready to be started. ``workers``: Triton's instances a model; the others have one."""
    home = folder() / name
    settings = {
        "PEER_HOME": str(home), "PEER_VENV": str(environment(name)), "PEER_MODELS": str(models),
        "PEER_PORT": str(PORTS[name]), "PEER_WORKERS": str(workers),
    }  # fmt: skip
    return Server(name, ["bash", str(HERE / name / "start.sh")], home, PORTS[name], settings, cpus)


def smoke(name: str) -> None:
    """All that a run of the comparison asks of a peer, in a few seconds."""
    import bodies
    import loads

    models = folder() / "models"
    asks = loads.prepare(models)
    peer = server(name, models)
    try:
        seconds = peer.start(lambda: loads.is_answering(peer.port, asks))
        where = ", ".join(f"{address}:{number}" for address, number in peer.listens())
        outside = [a for a, _ in peer.listens() if not a.startswith(("127.", "::1", "::ffff:127."))]
        if outside:
            raise ValueError(f"{name}: listens outside loopback: {outside}")
        print(f"{name}: right answers after {seconds:.1f} s; listens on {where}")
        for (model, form), ask in asks.items():
            if form in SPEAKS[name] and not (form == "grpc" and bodies.grpc_missing()):
                result = loads.closed(peer, ask, models, connections=8, seconds=1)
                print(f"{name} {model} {form}: {result}")
        print(f"{name}: {peer.memory()}")
    finally:
        peer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("install", "smoke", "list", "stop"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(NAMES):
        parser.error(f"expected names of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    for name in chosen.names or NAMES:
        if chosen.verb == "install":
            install(name)
        elif chosen.verb == "smoke":
            smoke(name)
        elif chosen.verb == "stop":
            server(name, folder() / "models").stop()
        else:
            pid = server(name, folder() / "models").running()
            state = f"running, pid {pid}" if pid else "installed" if is_installed(name) else "not installed"
            print(f"{name:9} {state}: {' '.join(asked_for(name))}")
    if chosen.verb == "install":
        install_tools()


if __name__ == "__main__":
    main()
