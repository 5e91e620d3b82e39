"""The checked-in stubs are exactly what proto/ generates: nobody edits them, nobody forgets them."""

from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parents[2]


def test_stubs_are_what_proto_generates(tmp_path: Path) -> None:
    protos = sorted(str(path) for path in (ROOT / "proto").glob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-Isplash_core/pb={ROOT / 'proto'}", *outputs, *protos]) == 0

    fresh = {path.name: path.read_text() for path in (tmp_path / "splash_core" / "pb").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "splash_core" / "pb").glob("*_pb2*.py*")}
    assert sorted(kept) == sorted(fresh), "run `make proto`, and remove stubs whose .proto is gone"
    assert [name for name in kept if kept[name] != fresh[name]] == [], "run `make proto`"
