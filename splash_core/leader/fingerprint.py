"""Which weights a group serves, as a short text that two groups can compare.

KV computed with other weights looks like any other bytes, and the name of a folder tells nothing. Invariant:
equal copies of a checkpoint have equal fingerprints wherever they lie, and the cost does not grow with size.
"""

import hashlib
import json
from pathlib import Path

from splash_core.errors import ConfigError
from splash_core.settings_model import ModelSettings
from splash_core.spec.fields import read_json

_BLOCK_BYTES = 4096
_BLOCKS = 1024
"""Sampled over all files: a fine-tune has its parent's config, headers and sizes, and only other numbers."""
_MIN_BLOCKS_PER_FILE = 16
_HEADER_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20
_SHORT = 8
_NOT_THE_MODEL = ("_name_or_path", "transformers_version")


def checkpoint_fingerprint(directory: Path) -> str:
    """Digest of config.json; then, after a dash, of headers, sizes and samples of the safetensors files.

    A folder without weights, as a router may have, has the first part only.

    Raises:
        ConfigError: a file cannot be read, or is cut off.
    """
    model = _config_digest(directory)
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return model
    digest = hashlib.sha256()
    blocks = max(_MIN_BLOCKS_PER_FILE, _BLOCKS // max(1, len(files)))
    for path in files:
        try:
            digest.update(_file_digest(path, blocks))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    return f"{model}-{digest.hexdigest()[:16]}"


def served_fingerprint(settings: ModelSettings, directory: Path) -> str:
    """Of the weights that settings have served: the checkpoint's, or random ones of a seed and its config.

    Raises:
        ConfigError: a file cannot be read, or is cut off.
    """
    if settings.load_format != "dummy":
        return checkpoint_fingerprint(directory)
    weights = hashlib.sha256(f"dummy {settings.dummy_seed}".encode()).hexdigest()
    return f"{_config_digest(directory)}-{weights[:16]}"


def short_fingerprint(fingerprint: str) -> str:
    """As people read one: the first characters of config and weights, enough to tell checkpoints apart."""
    return "-".join(part[:_SHORT] for part in fingerprint.split("-")) or "none"


def same_checkpoint(ours: str, theirs: str) -> bool:
    """True when two fingerprints are of one model: equal, as far as both folders have weights."""
    our_model, _, our_weights = ours.partition("-")
    their_model, _, their_weights = theirs.partition("-")
    weights_differ = our_weights and their_weights and our_weights != their_weights
    return our_model == their_model and not weights_differ


def _config_digest(directory: Path) -> str:
    config = read_json(directory / "config.json")
    kept = {name: value for name, value in config.items() if name not in _NOT_THE_MODEL}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _file_digest(path: Path, blocks: int) -> bytes:
    size = path.stat().st_size
    digest = hashlib.sha256(f"{path.name} {size}".encode())
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
        if header_bytes > min(size, _MAX_HEADER_BYTES):
            raise ConfigError(f"{path} is no safetensors file, or is cut off; fetch it again")
        digest.update(file.read(header_bytes))
        data = _HEADER_LENGTH_BYTES + header_bytes
        # Evenly spaced, the last one at the very end; small files are read whole.
        stride = max(_BLOCK_BYTES, (size - data) // blocks)
        for offset in (*range(data, size, stride), max(data, size - _BLOCK_BYTES)):
            file.seek(offset)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.digest()
