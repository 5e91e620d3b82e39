"""Where a group is held: by hand, by its document, and what a set by hand puts aside."""

from splash_core.layout.layout import Layout
from splash_core.leader.pins import Pins


def test_a_set_by_hand_puts_aside_an_occasion_and_not_a_layout() -> None:
    pins = Pins()
    assert pins.follow(Layout.DP) is Layout.DP
    pins.put_aside(Layout.DP, Layout.TP)
    assert pins.follow(Layout.DP) is None
    assert pins.follow(Layout.CP) is Layout.CP
    assert pins.follow(Layout.DP) is Layout.DP


def test_an_hour_without_a_pin_ends_what_was_put_aside() -> None:
    pins = Pins()
    pins.put_aside(Layout.DP, Layout.TP)
    assert pins.follow(Layout.DP) is None
    assert pins.follow(None) is None
    assert pins.follow(Layout.DP) is Layout.DP


def test_the_document_is_followed_behind_a_pin_by_hand() -> None:
    pins = Pins()
    pins.put_aside(Layout.DP, Layout.TP)
    pins.by_hand = Layout.TP
    assert [pins.follow(said) for said in (Layout.DP, Layout.CP, Layout.DP)] == [Layout.TP] * 3
    pins.by_hand = None
    assert pins.held(Layout.DP) is Layout.DP
