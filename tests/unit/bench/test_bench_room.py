"""What cannot fit into a host is refused before ranks make weights, or count pages one by one."""

import pytest

from services.bench.handoff import HandoffSettings, handoff_rows
from services.bench.room import check_pages, check_weights, weight_bytes
from services.bench.settings import INPROCESS, PrimitivesSettings
from services.bench.shapes import measured_spec
from services.bench.spmd import resolved
from splash_core.errors import ConfigError, Infeasible
from splash_core.leader.host import memory_limit

HUGE = 10**15


def settings(**changes: object) -> PrimitivesSettings:
    fields = {
        "model": "tiny",
        "device": "cpu",
        "dtype": "fp32",
        "backend": INPROCESS,
        "page_size": 4,
    } | changes
    return PrimitivesSettings(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"layers": HUGE}, {"experts": HUGE}, {"arena_bytes": HUGE}])
def test_weights_and_arenas_that_no_host_holds_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(Infeasible, match=r"at least, and this host has .*; nearest feasible: fewer --layers"):
        resolved(settings(**changes))
    check_weights(settings(device="cuda", **changes))


def test_what_fits_is_let_pass() -> None:
    assert resolved(settings()).model == "tiny"
    spec = measured_spec("tiny")
    one, two = (weight_bytes(spec, settings(ranks=ranks)) for ranks in (1, 2))
    assert two < one < memory_limit()


def test_pages_that_no_host_holds_are_refused_before_they_are_counted() -> None:
    check_pages(settings(), requests=4, pages=4, slot_bytes=4096)
    check_pages(settings(device="cuda"), requests=HUGE, pages=HUGE, slot_bytes=4096)
    for requests, pages, slot_bytes in ((HUGE, 1, 4096), (1, HUGE, 4096), (1, 1, HUGE)):
        with pytest.raises(Infeasible, match="a smaller --batch, fewer tokens, or a smaller --page-size"):
            check_pages(settings(), requests=requests, pages=pages, slot_bytes=slot_bytes)


def test_a_handoff_that_no_host_holds_is_refused() -> None:
    with pytest.raises(Infeasible, match=r"two arenas of .*nearest feasible: a smaller --handoff-bytes"):
        handoff_rows(HandoffSettings(handoff_bytes=HUGE), lambda stage: None)


def test_no_repetition_at_all_is_refused() -> None:
    from splash_core.settings_base import check_settings

    with pytest.raises(ConfigError, match="--reps: 0 is out of range: at least 1"):
        check_settings(settings(reps=0))
