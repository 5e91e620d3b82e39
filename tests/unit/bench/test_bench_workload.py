"""How rates are read off arrivals, and what a benchmark document says of itself."""

import json
from pathlib import Path

import pytest

from services.bench.calibrate_served import common_gap_s
from services.bench.document import measured_here
from services.bench.streams import Streamed
from services.bench.workload import common_window_rate, median_of, prompt_ids
from splash_core.errors import ConfigError


def test_rate_counts_only_the_window_in_which_all_streams_decode() -> None:
    first = [0.0, 1.0, 2.0, 3.0, 4.0]
    late = [2.0, 3.0, 4.0, 5.0, 6.0]
    # All decode from 2 s to 4 s: two tokens of each.
    assert common_window_rate([first, late]) == pytest.approx(2.0)
    assert common_window_rate([first]) == pytest.approx(1.0)


def test_streams_that_never_overlap_are_refused() -> None:
    with pytest.raises(ConfigError, match="never all decoding"):
        common_window_rate([[0.0, 1.0], [2.0, 3.0]])
    with pytest.raises(ConfigError, match=r"2 streams were never all decoding .* raise --stream-tokens"):
        common_gap_s([Streamed(times=[0.0, 1.0]), Streamed(times=[2.0, 3.0])])


def test_the_common_gap_is_that_of_one_stream() -> None:
    streams = [Streamed(times=[0.0, 1.0, 2.0, 3.0, 4.0]), Streamed(times=[2.0, 3.0, 4.0, 5.0, 6.0])]
    assert common_gap_s(streams) == pytest.approx(1.0)


def test_median_leaves_the_warm_up_out() -> None:
    seen: list[int] = []

    def measure(rep: int) -> float:
        seen.append(rep)
        return {0: 5.0, 1: 1.0, 2: 3.0, 3: 100.0}[rep]

    assert median_of(3, measure) == 3.0
    assert seen == [3, 0, 1, 2]


def test_prompts_are_the_same_for_both_systems_and_differ_by_seed() -> None:
    assert prompt_ids(50, seed=1) == prompt_ids(50, seed=1)
    assert prompt_ids(50, seed=1) != prompt_ids(50, seed=2)
    assert all(isinstance(token, int) and 0 < token < 49_152 for token in prompt_ids(50, seed=3))


def test_document_says_where_it_was_measured(tmp_path: Path) -> None:
    document = measured_here("serve", settings={"reps": 3}, rows=[{"what": "decode"}])
    path = document.write(tmp_path)
    written = json.loads(path.read_text())
    assert set(written) == {"bench", "version", "machine", "commit", "date", "settings", "rows"}
    assert written["rows"] == [{"what": "decode"}]
    assert written["settings"] == {"reps": 3}
    assert written["commit"]
    assert " × " in written["machine"]
    assert path.name.startswith(f"serve-{written['date'][:10]}-")
