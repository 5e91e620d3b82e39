"""The type checker rejects a token count where bytes are wanted, and a rank where a slot is wanted."""

import json
import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).parent / "negative" / "typing_negative.py"
ROOT = Path(__file__).parents[2]


def test_pyright_rejects_exactly_the_marked_lines(tmp_path: Path) -> None:
    (tmp_path / SAMPLE.name).write_text(SAMPLE.read_text())
    config = {"extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--project", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    errors = [entry for entry in report["generalDiagnostics"] if entry["severity"] == "error"]
    rejected = sorted(entry["range"]["start"]["line"] + 1 for entry in errors)
    marked = [
        number
        for number, line in enumerate(SAMPLE.read_text().splitlines(), start=1)
        if line.endswith("# rejected")
    ]
    assert rejected == marked
    assert {entry["rule"] for entry in errors} == {"reportArgumentType"}
