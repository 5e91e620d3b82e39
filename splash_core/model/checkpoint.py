"""Strict, lazy reads from a safetensors directory: single file or index, one tensor slice at a time.

Invariant: nothing is read that is not asked for. Names are checked when the checkpoint is opened and a
tensor's shape before its first byte is read, so that a wrong checkpoint never yields a partial model.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from splash_core.errors import ConfigError
from splash_core.model.names import Shape, check_names, has_fused_experts
from splash_core.spec.fields import Fields, read_json
from splash_core.spec.model import ModelSpec

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_READABLE = ("F64", "F32", "F16", "BF16")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Reader(Protocol):
    """Where weights come from: a checkpoint, or a dry run that only counts."""

    @property
    def fused_experts(self) -> bool:
        """Whether experts are stored as one tensor per layer."""
        ...

    def read(self, name: str, *ranges: tuple[int, int]) -> Tensor:
        """The tensor, cut to the half-open `ranges` of its first dims, as stored."""
        ...


def cut_shape(shape: Shape, ranges: tuple[tuple[int, int], ...]) -> Shape:
    """The shape after cutting the first `len(ranges)` dims."""
    return tuple(end - start for start, end in ranges) + shape[len(ranges) :]


class Checkpoint:
    """An open checkpoint directory. A context manager; `close` releases the files."""

    def __init__(
        self, directory: Path, spec: ModelSpec, files: Mapping[str, Any], stack: contextlib.ExitStack
    ) -> None:
        self.directory = directory
        self.spec = spec
        self._files = files
        self._stack = stack
        self._shapes = check_names(files.keys(), spec)
        self._progress: Progress | None = None
        self._bytes_total = 0
        self.bytes_read = 0

    @classmethod
    def open(cls, directory: Path, *, spec: ModelSpec | None = None) -> "Checkpoint":
        """Open `directory` and match its tensor names against the model.

        Args:
            directory: a Hugging Face checkpoint: config.json and safetensors.
            spec: the model, if config.json was read before.

        Raises:
            ConfigError: files are missing or damaged, the model cannot be served, or names do not match.
        """
        spec = ModelSpec.from_checkpoint(directory) if spec is None else spec
        spec.check_servable()
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}
            for path, listed in _weight_files(directory):
                handle = _open_file(path, stack)
                stored = set(handle.keys())
                absent = sorted((listed or set()) - stored)
                if absent:
                    raise ConfigError(
                        f"{path} lacks {absent[0]}, which {_INDEX} places there; fetch it again"
                    )
                files.update(dict.fromkeys(stored if listed is None else listed, handle))
            return cls(directory, spec, files, stack.pop_all())

    @property
    def fused_experts(self) -> bool:
        """Whether experts are stored as one `[E, …]` tensor per layer."""
        return has_fused_experts(self._files, self.spec)

    def track(self, progress: Progress, total_bytes: int) -> None:
        """Report every later read to `progress`; `total_bytes` is what the caller is going to read."""
        self._progress, self._bytes_total, self.bytes_read = progress, total_bytes, 0

    def shape(self, name: str) -> Shape:
        """The shape that tensor `name` must have."""
        return self._shapes[name]

    def read(self, name: str, *ranges: tuple[int, int]) -> Tensor:
        """The tensor, cut to the half-open `ranges` of its first dims, in its stored dtype on the CPU.

        Raises:
            ConfigError: shape or element type are not what the model needs.
        """
        view = self._files[name].get_slice(name)
        shape, dtype = tuple(view.get_shape()), view.get_dtype()
        if shape != self._shapes[name]:
            raise ConfigError(
                f"{name} has shape {list(shape)}, {self.spec.name} needs {list(self._shapes[name])}"
            )
        if dtype not in _READABLE:
            raise ConfigError(f"{name} is stored as {dtype}; readable are {', '.join(_READABLE)}")
        cut = cut_shape(shape, ranges)
        if math.prod(cut) == 0:
            return torch.empty(cut)
        tensor: Tensor = view[tuple(slice(start, end) for start, end in ranges)] if ranges else view[:]
        self.bytes_read += tensor.nbytes
        if self._progress is not None:
            self._progress(self.bytes_read, self._bytes_total)
        return tensor

    def close(self) -> None:
        """Release the files; later reads fail."""
        self._files = {}
        self._stack.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CountingReader:
    """A dry run: same reads, meta tensors, and the bytes that a checkpoint would have read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._itemsize = dict(_item_sizes(checkpoint))
        self.num_bytes = 0

    @property
    def fused_experts(self) -> bool:
        """As the checkpoint's."""
        return self._checkpoint.fused_experts

    def read(self, name: str, *ranges: tuple[int, int]) -> Tensor:
        """A meta tensor of the shape that the checkpoint would return."""
        cut = cut_shape(self._checkpoint.shape(name), ranges)
        self.num_bytes += math.prod(cut) * self._itemsize[name]
        return torch.empty(cut, device="meta")


def _item_sizes(checkpoint: Checkpoint) -> Iterator[tuple[str, int]]:
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    for name, handle in checkpoint._files.items():
        yield name, sizes.get(handle.get_slice(name).get_dtype(), 1)


def _open_file(path: Path, stack: contextlib.ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt", device="cpu"))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} is not a readable safetensors file: {error}") from error


def _weight_files(directory: Path) -> Iterator[tuple[Path, set[str] | None]]:
    """Each weight file with the names that the index places in it; None: whatever it holds."""
    index = directory / _INDEX
    if not index.exists():
        if not (directory / _SINGLE).exists():
            raise ConfigError(f"{directory} has neither {_SINGLE} nor {_INDEX}; convert it to safetensors")
        yield directory / _SINGLE, None
        return
    weight_map = Fields(read_json(index), str(index)).section("weight_map")
    if weight_map is None:
        raise ConfigError(f"{index} has no weight_map; fetch the checkpoint again")
    by_file: dict[str, set[str]] = {}
    for name, file in weight_map.values.items():
        by_file.setdefault(str(file), set()).add(name)
    for file in sorted(by_file):
        if Path(file).name != file:
            raise ConfigError(f"{index} names {file!r}; weight files must lie beside it")
        yield directory / file, by_file[file]
