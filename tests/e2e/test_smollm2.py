"""The demo on the real model over Mooncake: fetch, chat, 24 switches, drain, nothing left behind.

`make demo` is the same over shared memory.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from splash_core.checkpoints.cache import ModelCache
from splash_core.environment import cache_home

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_demo_serves_the_real_model_through_all_switches() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services", "demo", "--json", "--transport", "mooncake"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1, f"{done.stdout}\n{done.stderr}"
    report = json.loads(lines[0])
    assert report["problems"] == [], done.stderr
    assert done.returncode == 0
    assert report["ok"] is True
    assert "Paris" in report["answer"]
    pairs = {(entry["phase"], entry["from"], entry["to"]) for entry in report["switches"]}
    assert len(pairs) == 24
    assert all(entry["tokens_equal"] and entry["streams"] > 0 for entry in report["switches"])
    assert report["borrowed_pages"] > 0
    assert report["audit"]["pages_held"] == 0

    folder = ModelCache(cache_home()).path("smollm2-mla")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "Zürich, naïve façade: 東京 🙂 1234"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id("<|im_end|>") == 2
