"""A writer's end of one control channel: opens a session, and proves that it is over.

Invariant: `over` is True only with proof: the peer says that it has ended the session's receiving engine, or
its process is gone. No answer is no proof.
"""

from dataclasses import asdict

from splash_core.errors import Conflict, Unavailable
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.mooncake_words import Address, Line, Message, NotUnderstood, Welcome, dial
from splash_core.transport.options import TransportOptions


class PeerLink:
    """A session with one peer, as its control channel sees it."""

    def __init__(self, address: Address, line: Line, welcome: Welcome, *, timeout_s: float) -> None:
        self.address = address
        self.welcome = welcome
        self._line = line
        self._timeout_s = timeout_s

    @classmethod
    def open(cls, address: Address, abi: KvAbi, options: TransportOptions) -> "PeerLink":
        """Ask a peer for a session of our own.

        Raises:
            Conflict: its ABI, or its transport's protocol or version, differs; the message holds the diff.
            Unavailable: nobody answers there, or not in time, or in another version's words.
        """
        timeout_s = options.answer_timeout_s
        try:
            line = dial(address, timeout_s)
        except OSError as error:
            raise Unavailable(f"nobody listens at {address} ({error}); has its process ended?") from error
        try:
            line.send(
                {
                    "ask": "open",
                    "incarnation": address.incarnation,
                    "writer": options.writer,
                    "term": address.term,
                    "speaks": options.speaks,
                    "abi": asdict(abi),
                }
            )
            welcome = _welcome(address, line.receive(timeout_s))
            _check(address, welcome, abi, options)
        except TimeoutError as error:
            line.close()
            raise Unavailable(
                f"{address} does not answer within {timeout_s:g} s; is its process stopped?"
            ) from error
        except (OSError, NotUnderstood) as error:
            line.close()
            raise Unavailable(f"{address} does not answer as it should: {error}") from error
        except Exception:
            line.close()
            raise
        return cls(address, line, welcome, timeout_s=timeout_s)

    def gone(self) -> bool:
        """True if the peer has closed the channel: it ended our session before (perhaps as it heard nothing
        of our group for too long), or its process has ended."""
        return self._line.closed_by_peer()

    def lost(self) -> bool:
        """True if the channel carries nothing more: closed by the peer, or broken, which proves nothing."""
        return self._line.closed_by_peer() or self._line.broken

    def over(self) -> bool:
        """Have the session ended by the peer; True with proof that it is. Takes two timeouts at most."""
        if self.gone():
            return True
        # A connection of its own: the old one may have broken, or be in the middle of something.
        try:
            line = dial(self.address, self._timeout_s)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        try:
            line.send(
                {
                    "ask": "fence",
                    "incarnation": self.address.incarnation,
                    "session": self.welcome.session,
                }
            )
            answer = line.receive(self._timeout_s) or {}
        except (OSError, NotUnderstood):
            return False
        finally:
            line.close()
        return answer.get("fenced") is True or answer.get("gone") is True

    def close(self) -> None:
        """Let go; the peer ends the session."""
        self._line.close()


def _welcome(address: Address, answer: Message | None) -> Welcome:
    if answer is None:
        raise Unavailable(f"{address} closed the connection; is it shutting down?")
    if answer.get("gone"):
        raise Unavailable(f"{address} belongs to a process that has ended: another one listens there now")
    if "error" in answer:
        raise Unavailable(f"{address} takes no writes: {answer['error']}")
    return Welcome.from_message(answer)


def _check(address: Address, welcome: Welcome, abi: KvAbi, options: TransportOptions) -> None:
    differences = abi_diff(abi, welcome.abi)
    if options.speaks != welcome.speaks:
        differences.append(f"transport: ours {options.speaks!r}, theirs {welcome.speaks!r}")
    if differences:
        raise Conflict(f"the KV at {address} has another ABI: {'; '.join(differences)}")
    if not welcome.segment:
        raise Unavailable(f"{address} takes no writes and does not say why; are both of one version?")
