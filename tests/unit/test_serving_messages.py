"""The messages of the gRPC door: compiled from their source, and those of others where others have them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_tools import protoc

from pellucid.servers.grpc.asked import ASKED
from pellucid.servers.grpc.messages import DESCRIPTOR, fill, message_class

GENERATED = Path(str(files("pellucid.servers"))) / "_generated"


def compiled(folder: Path, name: str, out: Path) -> Any:
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", name]) == 0
    (described,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return described


def test_the_compiled_messages_are_those_of_the_source(tmp_path: Path):
    (shipped,) = descriptor_pb2.FileDescriptorSet.FromString(
        (GENERATED / "inference.binpb").read_bytes()
    ).file
    assert shipped == compiled(GENERATED, "inference.proto", tmp_path / "out"), "run: make proto"


def fields_of(message: Any) -> dict[str, tuple[Any, ...]]:
    """Every field below a message: number, type, label."""
    found = {f"{message.name}.{f.name}": (f.number, f.type, f.label) for f in message.field}
    for nested in message.nested_type:
        found |= {f"{message.name}.{name}": row for name, row in fields_of(nested).items()}
    return found


def everything_in(described: Any) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for message in described.message_type:
        found |= fields_of(message)
    for service in described.service:
        for m in service.method:
            row = (m.input_type, m.output_type, m.client_streaming, m.server_streaming)
            found[f"{service.name}.{m.name}"] = row
    return found


def test_upstream_is_untouched_and_all_of_it_is_here(tmp_path: Path, repository: Path):
    folder = repository / "spec" / "upstream"
    for name, digest in re.findall(
        r"\[(\S+)\]\(\1\) \|[^|]*\| `([0-9a-f]{64})`", (folder / "README.md").read_text()
    ):
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    upstream = everything_in(compiled(folder, "open_inference_grpc.proto", tmp_path / "up"))
    ours = everything_in(compiled(GENERATED, "inference.proto", tmp_path / "ours"))
    assert len(upstream) > 50
    assert {name: ours.get(name) for name in upstream} == upstream


THEIRS = """
import importlib.util, sys, types
import tritonclient
package = types.ModuleType("tritonclient.grpc")  # its messages without its client, which needs grpc
package.__path__ = [tritonclient.__path__[0] + "/grpc"]
sys.modules["tritonclient.grpc"] = package
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2
both = descriptor_pb2.FileDescriptorSet()
for module in (model_config_pb2, service_pb2):
    module.DESCRIPTOR.CopyToProto(both.file.add())
sys.stdout.buffer.write(both.SerializeToString())
"""


def test_field_numbers_are_those_of_the_stock_client(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", THEIRS], capture_output=True, check=True, timeout=60)
    theirs: dict[str, Any] = {}
    enums: dict[str, Any] = {}
    for described in descriptor_pb2.FileDescriptorSet.FromString(done.stdout).file:
        theirs |= everything_in(described)
        enums |= {e.name: {v.name: v.number for v in e.value} for e in described.enum_type}
    ours = compiled(GENERATED, "inference.proto", tmp_path / "ours")
    known = everything_in(ours)
    own = {name for name in known if name not in theirs}
    assert own == {  # of the protocol, not of Triton
        "ModelMetadataResponse.properties",
        "ModelMetadataResponse.PropertiesEntry.key",
        "ModelMetadataResponse.PropertiesEntry.value",
    }
    assert {name: theirs[name] for name in known if name not in own} == {
        name: row for name, row in known.items() if name not in own
    }
    assert enums["DataType"] == {v.name: v.number for v in ours.enum_type[0].value}


def test_every_rpc_of_the_service_has_an_answer():
    named = {method.name for method in DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    assert named == {*ASKED, "ModelInfer", "ModelStreamInfer"}


def test_the_messages_live_beside_those_of_a_stock_client():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")
    assert fill(message_class("ServerLiveResponse"), {"live": True}).live
