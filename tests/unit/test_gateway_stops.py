"""Stop strings: never shown, not even in part, however the text arrives."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.router.events import Finished, SequenceEvent, Tokens
from services.router.sequence import Piece, SequenceText, TextRules
from services.router.stops import StopMatcher

TEXT = st.text(alphabet="ab\n", max_size=24)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first end of any stop wins, then the earliest beginning."""
    for end in range(len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            longest = max(matching, key=len)
            return text[: end - len(longest)], longest
    return text, None


def feed(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown: list[str] = []
    for piece in pieces:
        scan = matcher.push(piece)
        shown.append(scan.text)
        if scan.matched is not None:
            return shown, scan.matched
    return [*shown, matcher.flush()], None


@given(TEXT, STOPS, st.lists(st.integers(0, 24), max_size=6))
def test_result_does_not_depend_on_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(edges)]
    shown, matched = feed(stops, pieces)
    assert ("".join(shown), matched) == reference(text, stops)


@given(TEXT, STOPS)
def test_nothing_is_held_longer_than_needed(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    arrived = shown = ""
    for char in text:
        scan = matcher.push(char)
        arrived, shown = arrived + char, shown + scan.text
        if scan.matched is not None:
            return
        held = arrived[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(stop in shown for stop in stops)


def test_examples() -> None:
    assert feed(["END"], ["the E", "N", "Dxx"]) == (["the ", "", ""], "END")
    assert feed(["END"], ["the E", "N", "Q"]) == (["the ", "", "ENQ", ""], None)
    assert feed(["END"], ["the EN"]) == (["the ", "EN"], None)
    assert feed(["bcd", "c"], ["abcd"]) == (["ab"], "c")
    assert feed([], ["any", "thing"]) == (["any", "thing", ""], None)


def pieces_of(tokens: list[bytes], rules: TextRules, reason: str = "length") -> list[Piece]:
    """The pieces of a sequence whose tokens have the given bytes."""

    class Bytes:
        def token_bytes(self, token: int) -> bytes:
            return tokens[token]

        def is_special(self, token: int) -> bool:
            return tokens[token] == b"<special>"

    state = SequenceText(0, Bytes(), rules)  # type: ignore[arg-type]
    events: list[SequenceEvent] = [Tokens(tokens=(index,)) for index in range(len(tokens))]
    found: list[Piece] = []
    for event in [*events, Finished(reason=reason)]:
        piece = state.push(event.tokens, ()) if isinstance(event, Tokens) else state.end(reason)
        found.append(piece)
        if piece.finish is not None:
            break
    return found


def test_stop_over_three_tokens_cuts_text_and_counts_tokens_to_its_end() -> None:
    rules = TextRules(stops=("STOP",), min_tokens=0)
    found = pieces_of([b"go S", b"TO", b"P now", b"never"], rules)
    assert "".join(piece.text for piece in found) == "go "
    assert found[-1].finish == "stop"
    assert sum(piece.tokens for piece in found) == 3
    assert sum(len(piece.entries) for piece in found) == 3


def test_stop_inside_a_split_character() -> None:
    rules = TextRules(stops=("é!",), min_tokens=0)
    found = pieces_of([b"th\xc3", b"\xa9", b"!", b"x"], rules)
    assert "".join(piece.text for piece in found) == "th"
    assert found[-1].finish == "stop"


def test_stop_completed_by_the_flush_of_a_cut_character() -> None:
    rules = TextRules(stops=("a\ufffd",), min_tokens=0)
    found = pieces_of([b"xa", b"\xf0\x9f"], rules)
    assert "".join(piece.text for piece in found) == "x"
    assert found[-1].finish == "stop"


def test_min_tokens_delays_stop_strings() -> None:
    rules = TextRules(stops=("a",), min_tokens=3)
    found = pieces_of([b"a", b"a", b"b", b"a", b"c"], rules)
    assert "".join(piece.text for piece in found) == "aab"
    assert found[-1].finish == "stop"


def test_entries_wait_with_their_text_and_none_is_lost() -> None:
    rules = TextRules(stops=("yz",), min_tokens=0)
    found = pieces_of([b"a", b"y", b"<special>", b"\xf0", b"\x9f"], rules)
    assert "".join(piece.text for piece in found) == "ay\ufffd"
    assert [entry.token for piece in found for entry in piece.entries] == [0, 1, 2, 3, 4]
    assert [entry.text_offset for piece in found for entry in piece.entries] == [0, 1, 2, 2, 2]
    assert [piece.finish for piece in found if piece.finish] == ["length"]
