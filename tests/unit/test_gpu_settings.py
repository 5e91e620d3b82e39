"""Which GPUs the groups of a host have: their own, unless they are named."""

import pytest

from splash_core.config import GroupSettings, UpSettings, resolve
from splash_core.errors import ConfigError, Infeasible
from splash_core.leader.gpus import group_gpus, stack_gpus


def _stack(**fields: object) -> tuple[str, str]:
    return stack_gpus(resolve(UpSettings, flags={"device": "cuda", **fields}, environ={}))


def test_a_group_alone_has_the_first_gpus() -> None:
    assert group_gpus(GroupSettings(device="cuda", ranks=3)) == (0, 1, 2)
    assert group_gpus(GroupSettings(device="cuda", ranks=2, gpus="4,1")) == (4, 1)
    assert group_gpus(GroupSettings()) == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"device": "cuda", "ranks": 2, "gpus": "0"}, "names 1, but there are 2 --ranks"),
        ({"gpus": "0,1"}, "--device cpu: use --device cuda"),
    ],
)
def test_gpus_that_do_not_fit_the_ranks_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        group_gpus(GroupSettings(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0,0", "0,", "a", "-1", "0 1", "0,00"])
def test_a_text_that_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of different GPU numbers such as 0,1"):
        resolve(GroupSettings, flags={"gpus": text}, environ={})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("0,1", "2,3")),
        ({"prefill_ranks": 1, "decode_ranks": 3}, ("0", "1,2,3")),
        ({"prefill_gpus": "2,3"}, ("2,3", "0,1")),
        ({"decode_gpus": "1,0"}, ("2,3", "1,0")),
        ({"decode_gpus": "0,1", "prefill_gpus": "0,1", "memory_fraction": 0.45}, ("0,1", "0,1")),
        ({"decode_gpus": "0,1", "prefill_gpus": "1,2", "kv_bytes": 1 << 30}, ("1,2", "0,1")),
        ({"device": "cpu"}, ("", "")),
    ],
)
def test_a_stack_s_groups_share_no_gpu_unless_they_are_told_to(
    fields: dict[str, object], expected: tuple[str, str]
) -> None:
    assert _stack(**fields) == expected


def test_two_groups_that_would_each_take_most_of_a_gpu_are_refused() -> None:
    with pytest.raises(Infeasible, match=r"both groups have GPUs 1, and each would take 0\.85 of"):
        _stack(prefill_gpus="0,1", decode_gpus="1,2")
