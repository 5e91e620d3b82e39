"""Parts of the Mooncake transport without Mooncake: words, pieces, windows, and what makes a write quiet."""

import errno
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash_core.errors import ConfigError, Conflict, Unavailable
from splash_core.transport import mooncake_library, mooncake_probe, mooncake_server
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, OpState, TrafficClass
from splash_core.transport.factory import open_transport, reach_peer
from splash_core.transport.link import BandwidthArbiter
from splash_core.transport.mooncake import MooncakeTransport
from splash_core.transport.mooncake_engine import EngineEnded, MooncakeEngine
from splash_core.transport.mooncake_link import PeerLink
from splash_core.transport.mooncake_op import MooncakeOp, pieces
from splash_core.transport.mooncake_probe import Prober
from splash_core.transport.mooncake_server import MooncakeServer
from splash_core.transport.mooncake_session import Session
from splash_core.transport.mooncake_wire import WINDOW_BYTES, WINDOW_PIECES, Wire, WireRoute
from splash_core.transport.mooncake_words import Address, Line, NotUnderstood, Welcome, at_term, dial
from splash_core.transport.options import MOONCAKE, TransportOptions
from splash_core.transport.turns import Turns
from splash_core.units import MIB
from tests.support.transports import ABI, WITHIN_S, eventually

PIECE_BYTES = 4 * MIB
OPTIONS = TransportOptions(name=MOONCAKE, answer_timeout_s=2.0)


class FakeLibrary:
    """A library engine whose writes end when the test says so."""

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.asked_again: list[int] = []
        self.full = False

    def get_rpc_port(self) -> int:
        return 1

    def register_memory(self, address: int, num_bytes: int) -> int:
        return 0

    def send_probe(self, segment: str) -> int:
        return 0

    def transfer_submit_write(self, segment: str, src: int, dst: int, num_bytes: int) -> int:
        if self.full:
            return 0
        self.states[len(self.states) + 1] = 0
        return len(self.states)

    def transfer_check_status(self, number: int) -> int:
        state = self.states[number]
        if state == 9:
            self.asked_again.append(number)
        if state != 0:
            # As the library does: a final answer is given once.
            self.states[number] = 9
        return state


def _op(
    *descriptors: Descriptor, deadline: float = float("inf"), changed: threading.Condition | None = None
) -> MooncakeOp:
    return MooncakeOp(
        descriptors,
        deadline=deadline,
        attempt=1,
        changed=changed or threading.Condition(),
        turns=Turns(BandwidthArbiter().flow(TrafficClass.HANDOFF)),
        piece_bytes=PIECE_BYTES,
    )


RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3 * PIECE_BYTES)), max_size=6)


@given(RUNS)
def test_pieces_are_the_same_bytes_in_the_same_order(parts: list[tuple[int, int, int]]) -> None:
    descriptors = [Descriptor(src * PIECE_BYTES, dst * PIECE_BYTES, size) for src, dst, size in parts]
    cut = list(pieces(descriptors, PIECE_BYTES))
    assert all(0 < piece.num_bytes <= PIECE_BYTES for piece in cut)
    # Walk both lists byte by byte, in strides that end where one of them does.
    left = [[part.src, part.dst, part.num_bytes] for part in descriptors if part.num_bytes]
    for piece in cut:
        src, dst, size = piece.src, piece.dst, piece.num_bytes
        while size:
            head = left[0]
            assert (head[0], head[1]) == (src, dst)
            step = min(size, head[2])
            head[0], head[1], head[2] = head[0] + step, head[1] + step, head[2] - step
            src, dst, size = src + step, dst + step, size - step
            if head[2] == 0:
                left.pop(0)
    assert left == []


def test_neighbouring_pages_travel_together() -> None:
    page = 4096
    pages = [Descriptor(i * page, 8 * page + i * page, page) for i in range(10)]
    assert list(pieces(pages, PIECE_BYTES)) == [Descriptor(0, 8 * page, 10 * page)]


def test_a_failed_piece_keeps_the_write_unquiet_until_the_fence() -> None:
    library = FakeLibrary()
    wire = Wire(MooncakeEngine(library, "h"), WireRoute("peer", 0, 0))
    changed = threading.Condition()
    op = _op(Descriptor(0, 0, 10), Descriptor(100, 100, 10), changed=changed)
    for _ in range(2):
        assert wire.submit(op, op.take())
    library.states.update({1: 1, 2: -1})
    written, failed = wire.landed()
    assert ([flight.number for flight in written], [flight.number for flight in failed]) == ([1], [2])
    with changed:
        op.written(10)
        op.failed("cut")
    assert wire.landed() == ([], [])
    assert library.asked_again == []
    assert op.poll().state is OpState.FAILED
    assert op.poll().written_bytes == 10
    assert not op.quiesced
    with changed:
        op.fenced()
    assert op.quiesced


def test_a_cancelled_write_is_quiet_when_its_pieces_have_landed() -> None:
    changed = threading.Condition()
    op = _op(Descriptor(0, 0, 10), Descriptor(100, 100, 10), changed=changed)
    op.take()
    op.cancel()
    assert not op.quiesced
    assert not op.has_more
    with changed:
        op.written(10)
    assert op.quiesced
    assert (op.poll().state, op.poll().written_bytes) == (OpState.CANCELLED, 10)


def test_a_deadline_passes_although_nobody_works_on_the_write() -> None:
    op = _op(Descriptor(0, 0, 10), deadline=0.0)
    assert op.wait(60).state is OpState.FAILED
    assert op.quiesced


def test_the_window_is_small_and_holds_no_two_pieces_of_one_place() -> None:
    wire = Wire(MooncakeEngine(FakeLibrary(), "h"), WireRoute("peer", 0, 0))
    op = _op(*[Descriptor(0, 2 * i, 1) for i in range(WINDOW_PIECES)])
    assert wire.fits(Descriptor(0, 0, WINDOW_BYTES + 1))
    while op.has_more:
        assert wire.fits(op.peek())
        wire.submit(op, op.take())
    assert not wire.fits(Descriptor(0, 5000, 1))
    few = Wire(MooncakeEngine(FakeLibrary(), "h"), WireRoute("peer", 0, 0))
    few.submit(op, Descriptor(0, 100, 50))
    assert not few.fits(Descriptor(0, 149, 1))
    assert not few.fits(Descriptor(0, 90, 11))
    assert few.fits(Descriptor(0, 150, 1))
    assert not few.fits(Descriptor(0, 1000, WINDOW_BYTES))


def test_an_ended_engine_is_not_used() -> None:
    engine = MooncakeEngine(FakeLibrary(), "h")
    engine.end()
    engine.end()
    with pytest.raises(EngineEnded):
        engine.submit("peer", 0, 0, 1)


@pytest.mark.parametrize(
    "text", ["", "shm:@splash-1", "mooncake://", "mooncake://h:1", "mooncake://h:x/i", "http://h:1/i"]
)
def test_other_transports_addresses_are_refused(text: str) -> None:
    with pytest.raises(Unavailable, match="give both groups the same --transport"):
        Address.parse(text)


@pytest.mark.parametrize("host", ["10.0.0.1", "rank-3.splash", "fd00::7"])
def test_addresses_survive_the_wire(host: str) -> None:
    address = Address(host, 4711, "abc")
    assert Address.parse(str(address)) == address
    later = replace(address, term=12)
    assert Address.parse(str(later)) == later
    assert at_term(str(address), 12) == at_term(str(later), 12) == str(later)
    assert at_term(str(address), 0) == str(address)
    assert at_term("shm:@x", 12) == "shm:@x"


def test_a_welcome_of_another_version_is_not_understood() -> None:
    welcome = Welcome(speaks="x", abi=ABI, num_bytes=1, base=2, segment="s", session="t")
    assert Welcome.from_message(json.loads(json.dumps(welcome.to_message()))) == welcome
    with pytest.raises(NotUnderstood):
        Welcome.from_message(welcome.to_message() | {"novelty": 1})
    with pytest.raises(NotUnderstood):
        Welcome.from_message({"speaks": "x"})


@pytest.fixture
def server() -> Iterator[MooncakeServer]:
    memory = ArenaMemory(4096)
    server = MooncakeServer(memory, ABI, OPTIONS)
    yield server
    server.close()
    memory.close()


@pytest.mark.parametrize(
    "noise",
    [b"", b"\n", b"{\n", b"[1]\n", b"\xff\xfe\n", b"x" * 70000, b"[" * 60000 + b"\n", b'{"ask": 3}\n'],
)
def test_noise_on_the_control_channel_ends_its_own_connection_only(
    server: MooncakeServer, noise: bytes
) -> None:
    with socket.create_connection((server.address.host, server.address.port), timeout=5) as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    link = PeerLink.open(server.address, ABI, OPTIONS)
    assert link.welcome.num_bytes == 4096
    link.close()


def test_only_who_was_told_the_incarnation_gets_a_session(server: MooncakeServer) -> None:
    other = replace(server.address, incarnation="guessed")
    with pytest.raises(Unavailable, match="a process that has ended"):
        PeerLink.open(other, ABI, OPTIONS)


def test_another_protocol_or_version_is_refused_by_name(server: MooncakeServer) -> None:
    with pytest.raises(Conflict, match="transport: ours 'mooncake rdma 2', theirs 'mooncake tcp 2'"):
        PeerLink.open(server.address, ABI, replace(OPTIONS, protocol="rdma"))


def test_a_fence_is_proof_also_when_asked_twice_or_of_a_life_that_is_over(server: MooncakeServer) -> None:
    link = PeerLink.open(server.address, ABI, OPTIONS)
    assert not link.gone()
    assert link.over()
    assert link.over()
    line = dial(server.address, 5)
    line.send({"ask": "fence", "incarnation": "of yesterday", "session": "any"})
    assert (line.receive(5) or {})["gone"] is True
    line.close()
    link.close()


def _open(server: MooncakeServer, writer: str, *, term: int) -> PeerLink:
    return PeerLink.open(replace(server.address, term=term), ABI, replace(OPTIONS, writer=writer))


def test_a_fenced_writer_has_no_session_left_and_gets_none_in_its_old_terms(server: MooncakeServer) -> None:
    fenced = [_open(server, "w", term=term) for term in (1, 2)]
    spared = [
        _open(server, "w", term=3),
        _open(server, "v", term=1),
        PeerLink.open(server.address, ABI, OPTIONS),
    ]
    server.fence("w", term=2)
    for link in fenced:
        eventually(link.gone, "the fenced writer's channel is closed")
        assert link.over()
    for term in (1, 2):
        with pytest.raises(Unavailable, match=r"writer w was fenced up to term 2 .* must claim pages anew"):
            _open(server, "w", term=term)
    assert not any(link.lost() for link in spared)
    # Said again, late or early, it takes nothing back.
    server.fence("w", term=1)
    with pytest.raises(Unavailable, match="up to term 2"):
        _open(server, "w", term=2)
    spared.append(_open(server, "w", term=3))
    for link in (*fenced, *spared):
        link.close()


def test_a_session_that_is_opened_while_its_writer_is_fenced_is_not_there_afterwards(
    server: MooncakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is made first: the fence may come before anybody knows of it."""
    real = mooncake_server.new_engine
    made: list[MooncakeEngine] = []

    def new_engine(*arguments: object, **fields: object) -> MooncakeEngine:
        made.append(real(*arguments, **fields))  # type: ignore[arg-type]
        server.fence("w", term=1)
        return made[-1]

    monkeypatch.setattr(mooncake_server, "new_engine", new_engine)
    with pytest.raises(Unavailable, match="was fenced"):
        _open(server, "w", term=1)
    with pytest.raises(EngineEnded):
        made[0].probe("anybody")


def test_a_closed_server_is_proof(server: MooncakeServer) -> None:
    link = PeerLink.open(server.address, ABI, OPTIONS)
    server.close()
    assert link.over()
    link.close()


def test_silence_is_no_proof(server: MooncakeServer) -> None:
    """Somebody listens and says nothing: as a frozen process does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1], "x")
        welcome = Welcome(speaks="", abi=ABI, num_bytes=1, base=0, segment="s", session="t")
        link = PeerLink(address, dial(address, 5), welcome, timeout_s=0.2)
        assert not link.over()
        link.close()


def test_a_reset_is_no_proof_however_often_it_is_looked_at() -> None:
    """The kernel tells it once, and shows the end of the stream from then on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address("127.0.0.1", listening.getsockname()[1], "x")
        welcome = Welcome(speaks="", abi=ABI, num_bytes=1, base=0, segment="s", session="t")
        line = dial(address, 5)
        link = PeerLink(address, line, welcome, timeout_s=0.2)
        theirs, _ = listening.accept()
        assert not link.lost()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        eventually(link.lost, "the reset is noticed")
        assert [link.gone() for _ in range(3)] == [False] * 3
        assert not link.over()
        with pytest.raises(ConnectionResetError):
            line.receive(1)
        link.close()


class Vanishing(socket.socket):
    """A connection to a host that has vanished, as the kernel tells it: an error once, then the end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._numbers = [number]

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        if self._numbers:
            raise OSError(self._numbers.pop(), "told once")
        return b""


@pytest.mark.parametrize("look_first", [True, False])
@pytest.mark.parametrize(
    ("number", "closed"),
    [(errno.EAGAIN, True), (errno.ETIMEDOUT, False), (errno.EHOSTUNREACH, False), (errno.ECONNRESET, False)],
)
def test_only_a_line_that_never_broke_is_closed_by_the_peer(
    number: int, closed: bool, look_first: bool
) -> None:
    line = Line(Vanishing(number))
    if look_first:
        assert not line.closed_by_peer()
    else:
        with pytest.raises(OSError, match="told once"):
            line.receive(1)
    assert [line.closed_by_peer(), line.closed_by_peer(), line.broken] == [closed, closed, not closed]
    line.close()


def test_lines_may_arrive_in_parts() -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    for part in (b'{"a"', b": 1}", b'\n{"b": 2}\n'):
        theirs.sendall(part)
    assert [line.receive(5), line.receive(5)] == [{"a": 1}, {"b": 2}]
    with pytest.raises(TimeoutError):
        line.receive(0.01)
    theirs.close()
    assert line.receive(5) is None
    line.close()


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ({}, ("not installed", mooncake_library.INSTALL)),
        (
            {
                "mooncake-transfer-engine": mooncake_library.VERSION,
                "mooncake-transfer-engine-non-cuda": mooncake_library.VERSION,
            },
            ("installed together", "pip uninstall"),
        ),
        ({"mooncake-transfer-engine-cuda13": "0.3.14"}, ("0.3.14", f"=={mooncake_library.VERSION}")),
    ],
)
def test_a_wrong_installation_is_refused_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(mooncake_library, "installed_flavours", lambda: installed)
    with pytest.raises(ConfigError) as raised:
        mooncake_library.load_library()
    assert all(word in str(raised.value) for word in words)


def test_a_missing_system_library_is_told_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError("libibverbs.so.1: cannot open shared object file")

    monkeypatch.setattr(mooncake_library.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"libibverbs.so.1.*apt-get install -y libibverbs1"):
        mooncake_library.load_library()


def test_ports_stay_in_their_range() -> None:
    memory = ArenaMemory(4096)
    options = replace(OPTIONS, ports="23450-23470")
    servers = [MooncakeServer(memory, ABI, options) for _ in range(2)]
    assert len({server.address.port for server in servers}) == 2
    assert all(server.address.port in options.port_range for server in servers)
    for server in servers:
        server.close()
    with pytest.raises(ConfigError, match="--transport-ports"):
        MooncakeServer(memory, ABI, replace(options, bind="192.0.2.1"))
    memory.close()
    assert asdict(options)["ports"] == "23450-23470"


class FakeStart(FakeLibrary):
    """A library that starts whatever it is asked for, and tells its devices."""

    topology = ""

    def initialize(self, host: str, metadata: str, protocol: str, devices: str) -> int:
        assert metadata == mooncake_library.METADATA
        return 0

    def get_local_topology(self) -> str:
        return self.topology


@pytest.mark.parametrize(
    ("topology", "starts"),
    [("", False), ('{"cpu:0": [[], []]}', False), ('{"cpu:0": [["mlx5_0"], []]}', True)],
)
def test_rdma_without_a_device_is_refused_rather_than_carried_over_tcp(
    monkeypatch: pytest.MonkeyPatch, topology: str, starts: bool
) -> None:
    monkeypatch.setattr(FakeStart, "topology", topology)
    monkeypatch.setattr(mooncake_library, "load_library", lambda: SimpleNamespace(TransferEngine=FakeStart))
    options = replace(OPTIONS, protocol="rdma")
    if starts:
        mooncake_library.new_engine(options, memory=(0, 1)).end()
        return
    with pytest.raises(ConfigError, match="would carry pages over TCP"):
        mooncake_library.new_engine(options)


def test_an_unknown_protocol_never_reaches_the_library() -> None:
    with pytest.raises(ConfigError, match="'carrier-pigeon' is not one of tcp, rdma"):
        mooncake_library.new_engine(replace(OPTIONS, protocol="carrier-pigeon"))


class Throwing(FakeLibrary):
    """A library that throws, at the calls named."""

    def __init__(self, *calls: str) -> None:
        super().__init__()
        for call in calls:
            setattr(self, call, self._throw)

    def initialize(self, host: str, metadata: str, protocol: str, devices: str) -> int:
        return 0

    def get_local_topology(self) -> str:
        return '{"cpu:0": [["mlx5_0"], []]}'

    def _throw(self, *arguments: object) -> int:
        raise RuntimeError("no descriptors left")


class ProvedLink(PeerLink):
    """A link whose fence is over when the test says so; it throws when first asked."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        welcome = Welcome(speaks="", abi=ABI, num_bytes=4096, base=0, segment="s", session="t")
        super().__init__(Address("h", 1, "x"), Line(ours), welcome, timeout_s=1)
        self.proof = threading.Event()
        self.num_asked = 0

    def over(self) -> bool:
        self.num_asked += 1
        if self.num_asked == 1:
            raise ValueError("nobody thought of this")
        return self.proof.is_set()


def _session(link: PeerLink, start_wire: Callable[[PeerLink], Wire]) -> Session:
    return Session(link, start_wire=start_wire, patience_s=60, arbiter=BandwidthArbiter())


@pytest.mark.parametrize("call", ["transfer_submit_write", "transfer_check_status"])
def test_what_the_library_throws_ends_the_session_with_its_fence(call: str) -> None:
    link = ProvedLink()
    engine = MooncakeEngine(Throwing(call), "h")
    session = Session(
        link,
        start_wire=lambda link: Wire(engine, WireRoute("peer", 0, 0)),
        patience_s=60,
        arbiter=BandwidthArbiter(),
    )
    assert session.usable
    op = _write(session)
    status = op.wait(WITHIN_S)
    assert status.state is OpState.FAILED
    assert "RuntimeError: no descriptors left" in status.error
    assert not session.usable
    late = _write(session)
    assert late.poll().error == status.error
    assert late.quiesced
    eventually(lambda: link.num_asked > 1, "the fence is asked for again")
    assert not op.quiesced
    link.proof.set()
    session.join()
    assert op.quiesced
    # The peer is told too.
    assert link.theirs.recv(1) == b""
    link.theirs.close()


def test_an_engine_that_cannot_be_made_fails_what_is_queued() -> None:
    def start(link: PeerLink) -> Wire:
        raise RuntimeError("no descriptors left")

    link = ProvedLink()
    session = _session(link, start)
    op = _write(session)
    session.join()
    assert "no descriptors left" in op.poll().error
    assert op.quiesced
    assert not session.usable
    assert link.num_asked == 0
    link.theirs.close()


def test_a_closed_session_takes_no_writes() -> None:
    link = ProvedLink()
    session = Session(
        link,
        start_wire=lambda link: pytest.fail("nothing is written"),
        patience_s=60,
        arbiter=BandwidthArbiter(),
    )
    session.close(drain=True)
    session.join()
    assert not session.usable
    op = _write(session)
    assert "was closed" in op.poll().error
    assert op.quiesced
    link.theirs.close()


def _write(session: Session) -> MooncakeOp:
    return session.write([Descriptor(0, 0, 10)], traffic=TrafficClass.HANDOFF, deadline_s=WITHIN_S, attempt=1)


@pytest.mark.parametrize("call", ["initialize", "register_memory", "get_local_topology"])
def test_what_the_library_throws_at_the_start_is_told(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    library = SimpleNamespace(TransferEngine=lambda: Throwing(call))
    monkeypatch.setattr(mooncake_library, "load_library", lambda: library)
    with pytest.raises(Unavailable, match="RuntimeError: no descriptors left"):
        mooncake_library.new_engine(replace(OPTIONS, protocol="rdma"), memory=(0, 1))


def test_an_engine_ends_also_when_it_cannot_be_woken() -> None:
    engine = MooncakeEngine(Throwing("send_probe"), "h")
    engine.end()
    with pytest.raises(EngineEnded):
        engine.probe("peer")


def test_a_probe_that_throws_is_told_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = [FakeLibrary(), Throwing("send_probe")]
    monkeypatch.setattr(mooncake_probe, "new_engine", lambda options: MooncakeEngine(libraries.pop(), "h"))
    prober = Prober(OPTIONS)
    with pytest.raises(Unavailable, match=r"cannot ask .*RuntimeError: no descriptors left"):
        prober.check("peer:1")
    prober.check("peer:1")
    assert libraries == []
    prober.close()


@pytest.mark.parametrize("error", [ConfigError("a wrong library"), RuntimeError("no threads left")])
def test_a_peer_that_cannot_be_probed_is_let_go(
    server: MooncakeServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    opened: list[PeerLink] = []
    let_go: list[PeerLink] = []
    open_link, close_link = PeerLink.open, PeerLink.close

    def opening(address: Address, abi: KvAbi, options: TransportOptions) -> PeerLink:
        opened.append(open_link(address, abi, options))
        return opened[-1]

    def closing(link: PeerLink) -> None:
        let_go.append(link)
        close_link(link)

    def check(prober: Prober, segment: str) -> None:
        raise error

    monkeypatch.setattr(PeerLink, "open", opening)
    monkeypatch.setattr(PeerLink, "close", closing)
    monkeypatch.setattr(Prober, "check", check)
    transport = MooncakeTransport(OPTIONS)
    with pytest.raises(type(error), match=str(error)):
        transport.connect(str(server.address), ABI)
    assert len(opened) == 1
    assert let_go == opened
    transport.close(drain=False)


def test_writes_within_a_host_are_on_no_network_unless_rdma_carries_them() -> None:
    ours = TransportOptions(name=MOONCAKE, host="10.0.0.1")
    assert ours.stays_within("10.0.0.1")
    assert not ours.stays_within("10.0.0.2")
    assert not replace(ours, protocol="rdma").stays_within("10.0.0.1")


def test_an_unknown_transport_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="--transport 'pigeon' is not one of shm, mooncake"):
        open_transport(TransportOptions(name="pigeon"))
    with pytest.raises(ConfigError, match=r"'pigeon://loft' is no transport's address.* shm:.*mooncake:"):
        reach_peer(OPTIONS, "pigeon://loft", ABI)
