"""The Dockerfile of the image that builds run in: pinned base, pinned libraries, no root, no shell needed.

Pure text from values. It is built in a checkout of pellucid; only there are the locks.
"""

from __future__ import annotations

from typing import Final

from pellucid.build.manifests import ENVIRONMENT, MARK, USER
from pellucid.core.image import Image
from pellucid.errors import UsageError

LOCK: Final = "standard"
EXTRA_LOCKS: Final = {"onnxruntime": None, "tensorrt-rtx": "tensorrt-rtx"}  # backend -> one lock more
# NVIDIA's meta packages come as source only: they are built with the setuptools of the first lock
_EXTRA: Final = """\
COPY requirements/{extra}.txt ./extra.txt
RUN /opt/pellucid/bin/python -m pip install --require-hashes --no-deps --no-build-isolation -r extra.txt
"""
_TERMS: Final = """\
# This image holds NVIDIA's library. Read its terms (LICENSE.txt of the wheel) before the image goes to
# anybody else, and on hosted, medical, avionics and other life-critical use.
"""
_TEXT: Final = """\
{mark}; write it again instead of editing it.
# Build it in a checkout of pellucid whose commit you trust, and take the digest that the push gives:
#   docker build --pull=false --file Dockerfile --tag REGISTRY/pellucid:VERSION CHECKOUT
{terms}FROM {base} AS made
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /source
RUN python -m venv /opt/pellucid
COPY requirements/{lock}.txt ./lock.txt
RUN /opt/pellucid/bin/python -m pip install --require-hashes --only-binary :all: -r lock.txt
{extra}COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN --network=none /opt/pellucid/bin/python -m pip install --no-index --no-deps --no-build-isolation .

FROM {base}
LABEL org.opencontainers.image.base.digest="{digest}"
COPY --from=made /opt/pellucid /opt/pellucid
ENV PATH=/opt/pellucid/bin:/usr/local/bin:/usr/bin:/bin
{environment}
WORKDIR {home}
USER {user}:{user}
ENTRYPOINT ["pellucid"]
"""


def dockerfile(backend: str, base: Image) -> str:
    """Dockerfile for builds of one backend.

    Args:
        base: Image with Python 3.11 or newer and util-linux, by digest.

    Raises:
        UsageError: This version has no lock with the backend's library.
    """
    if backend not in EXTRA_LOCKS:
        raise UsageError(
            f"Dockerfile: expected a backend with a lock ({', '.join(EXTRA_LOCKS)}), got {backend}",
            hint="write an image of your own and name it with --image",
        )
    extra = EXTRA_LOCKS[backend]
    return _TEXT.format(
        mark=MARK, terms=_TERMS if extra else "", base=base, digest=base.digest,
        lock=LOCK, extra=_EXTRA.format(extra=extra) if extra else "", user=USER, home=ENVIRONMENT["HOME"],
        environment="\n".join(f"ENV {name}={value}" for name, value in ENVIRONMENT.items()),
    )  # fmt: skip
