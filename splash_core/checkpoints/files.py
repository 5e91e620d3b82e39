"""Files of a checkpoint in Hugging Face form: JSON, and safetensors in one file or several with an index.

Invariant: the same content gives the same bytes.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


def write_weights(out: Path, tensors: dict[str, Tensor], max_bytes: int | None) -> None:
    """Write tensors, in name order, into files of at most `max_bytes` (a larger tensor gets its own)."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    if max_bytes is None or total <= max_bytes:
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        return
    files: list[dict[str, Tensor]] = [{}]
    room = max_bytes
    for name, tensor in tensors.items():
        if files[-1] and tensor.nbytes > room:
            files.append({})
            room = max_bytes
        files[-1][name] = tensor
        room -= tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, part in enumerate(files, start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(part, out / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    write_json(
        out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write an object with sorted keys."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
