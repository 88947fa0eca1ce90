"""Manifests that run a build as a one-off job in a cluster: pure text from values.

The job gets nothing it does not need: no network, no capabilities, no service account, no secret,
one folder to write into. ``manifests_image`` writes the image's Dockerfile, ``manifests_workflow``
the pipeline. Source: requirement B2; docs/how-to/build-in-a-cluster.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from pellucid.build.environment import COMMIT, IMAGE, POD
from pellucid.core import strict_yaml
from pellucid.core.image import Image
from pellucid.core.recipe import Recipe
from pellucid.errors import UsageError

MARK: Final = "# Written by `pellucid job`"
USER: Final = 65532  # a number, so that the kubelet can see it is not root; in no passwd file
MODELS: Final = "/models"
LOG: Final = "/log"
STAGES: Final = 3  # children of one build, each with the recipe's whole time
REST_S: Final = 600  # limit: pulling the image, golden cases, writing the package
KEPT_S: Final = 24 * 3600  # how long a finished job stays to be looked at
PARENT_BYTES: Final = 2**30  # limit: the process beside the worker, which holds model and engine
GPU_BACKENDS: Final = ("tensorrt",)  # times its kernels on the GPU; tensorrt-rtx builds ahead of time
ENVIRONMENT: Final = {"HOME": "/tmp", "ORT_DISABLE_TELEMETRY": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: S108
_POD_FIELDS: Final = {"pod": "metadata.name", "namespace": "metadata.namespace", "node": "spec.nodeName"}
_PATH: Final = re.compile(r"(?![-/])(?!.*(^|/)\.{1,2}(/|$))[A-Za-z0-9._/-]{1,400}(?<!/)")
_DNS: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Order:
    """What a job is to build, and where.

    Attributes:
        recipe_digest: ``sha256:...`` of the recipe as written.
        path: Of the recipe, below the models volume and in the repository.
        image: What the job runs; by digest.
        gpu: Whether it asks for a GPU.
        commit: Of the sources, which a container cannot see; or ``None``.
        models_claim, log_claim: Persistent volume claims: read-only models, and the one to write into.
    """

    recipe: Recipe
    recipe_digest: str
    path: str
    image: Image
    gpu: bool
    commit: str | None = None
    namespace: str = "pellucid-build"
    models_claim: str = "pellucid-models"
    log_claim: str = "pellucid-log"

    def __post_init__(self) -> None:
        verify_plain("--path", self.path)
        if self.commit is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", self.commit):
            raise UsageError(f"--commit: expected 40 or 64 hex digits, got {self.commit!r:.80}")
        for option in ("namespace", "models_claim", "log_claim"):
            if not _DNS.fullmatch(value := getattr(self, option)):
                words = "a name of [a-z0-9-], at most 63"
                raise UsageError(f"--{option.replace('_', '-')}: expected {words}, got {value!r:.80}")

    @property
    def name(self) -> str:
        """DNS label of this very recipe's job, at most 63 characters."""
        plain = re.sub(r"[^a-z0-9]+", "-", f"{self.recipe.name}-{self.recipe.version}".lower())
        return f"build-{plain[:48].strip('-')}-{self.recipe_digest[7:15]}"

    @property
    def deadline_s(self) -> int:
        """Longest time of a job, pulling the image included."""
        return STAGES * int(self.recipe.limits["timeout_s"]) + REST_S

    @property
    def memory_bytes(self) -> int:
        """Memory of the whole container."""
        return int(self.recipe.limits["memory_bytes"]) + PARENT_BYTES


def verify_plain(subject: str, path: str) -> str:
    """The path, when no shell, YAML reader or workflow could read anything else into it.

    Raises:
        UsageError: It leaves its folder, or holds more than letters, digits and ``._/-``.
    """
    if not _PATH.fullmatch(path):
        raise UsageError(
            f"{subject}: expected a path below the repository of [A-Za-z0-9._/-] only, got {path!r:.120}"
        )
    return path


def needs_gpu(recipe: Recipe) -> bool:
    """Whether the builder itself runs kernels on a GPU."""
    return recipe.backend in GPU_BACKENDS


def job_yaml(order: Order) -> str:
    """NetworkPolicy and Job, in this order: the job never runs a moment without its policy."""
    documents = [strict_yaml.dump(d).decode() for d in (network_policy(order), job(order))]
    head = f"{MARK} for {order.recipe.name} {order.recipe.version}; write it again instead of editing it.\n"
    return head + "---\n".join(documents)


def network_policy(order: Order) -> dict[str, Any]:
    """Nothing in, nothing out, for the pods of this job only."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": order.name, "namespace": order.namespace, "labels": _labels(order)},
        "spec": {
            "podSelector": {"matchLabels": {"pellucid-job": order.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": [],
        },
    }


def job(order: Order) -> dict[str, Any]:
    """One run, never repeated: a build that crashed is an outcome to look at, not to hide by a retry."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": order.name,
            "namespace": order.namespace,
            "labels": _labels(order),
            "annotations": {"pellucid-recipe": order.recipe_digest},
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": order.deadline_s,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": _labels(order)}, "spec": _pod(order)},
        },
    }


def _labels(order: Order) -> dict[str, str]:
    return {"app.kubernetes.io/name": "pellucid-build", "pellucid-job": order.name}


def _pod(order: Order) -> dict[str, Any]:
    site = f"{LOG}/$(PELLUCID_POD)"  # a site a run: jobs never share a ledger, and a name is never reused
    recipe = str(PurePosixPath(MODELS) / order.path)
    tmp_bytes = STAGES * int(order.recipe.limits["file_bytes"])
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_container(order, "site", ["init", site])],
        "containers": [
            _container(order, "build", ["build", recipe, "--site", site, "--json"], gpu=order.gpu)
        ],
        "volumes": [
            {
                "name": "models",
                "persistentVolumeClaim": {"claimName": order.models_claim, "readOnly": True},
            },
            {"name": "log", "persistentVolumeClaim": {"claimName": order.log_claim}},
            {"name": "tmp", "emptyDir": {"sizeLimit": _quantity(tmp_bytes)}},
        ],
    }
    if order.gpu:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return pod


def _container(order: Order, name: str, arguments: list[str], *, gpu: bool = False) -> dict[str, Any]:
    threads, memory = int(order.recipe.threads), _quantity(order.memory_bytes)
    limits = {"cpu": str(threads + 1), "memory": memory} | ({"nvidia.com/gpu": "1"} if gpu else {})
    return {
        "name": name,
        "image": str(order.image),
        "command": ["pellucid"],
        "args": arguments,
        "workingDir": ENVIRONMENT["HOME"],
        "env": _environment(order),
        "resources": {"requests": {"cpu": str(threads), "memory": memory}, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            *([{"name": "models", "mountPath": MODELS, "readOnly": True}] if name == "build" else []),
            {"name": "log", "mountPath": LOG},
            {"name": "tmp", "mountPath": ENVIRONMENT["HOME"]},
        ],
    }


def _environment(order: Order) -> list[dict[str, Any]]:
    """Names of where it runs; a pod can learn its image from nobody, so the manifest says it."""
    values = ENVIRONMENT | {IMAGE: str(order.image)} | ({COMMIT: order.commit} if order.commit else {})
    plain = [{"name": name, "value": value} for name, value in values.items()]
    return plain + [
        {"name": POD[key], "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for key, path in _POD_FIELDS.items()
    ]


def _quantity(size_bytes: int) -> str:
    """Bytes as Kubernetes writes them, without rounding."""
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)
