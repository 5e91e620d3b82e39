"""Is a peer's engine alive, asked before the first write.

The first contact of an engine with a hung peer blocks it for a minute. So an engine that writes nothing asks,
in a thread that is left behind when no answer comes. Invariant: `check` returns or raises within its timeout.
"""

import threading

from splash_core.errors import Unavailable
from splash_core.transport.mooncake_engine import MooncakeEngine
from splash_core.transport.mooncake_library import new_engine
from splash_core.transport.options import TransportOptions


class Prober:
    """Asks peers, one at a time for each engine; an engine that is stuck is replaced."""

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        self._idle: list[MooncakeEngine] = []
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Start the first engine, so that what keeps engines from starting is known before any is needed.

        Raises:
            ConfigError: the library, protocol or devices are wrong.
            Unavailable: an engine does not start.
        """
        engine = new_engine(self._options)
        with self._lock:
            self._idle.append(engine)

    def check(self, segment: str) -> None:
        """Return if the engine `segment` answers.

        Raises:
            Unavailable: it refuses, does not answer in time, or our engine fails; says which.
        """
        with self._lock:
            engine = self._idle.pop() if self._idle else None
        engine = engine or new_engine(self._options)
        codes: list[int | str] = []
        thread = threading.Thread(
            target=_ask, args=(engine, segment, codes), name="mooncake-probe", daemon=True
        )
        thread.start()
        thread.join(self._options.answer_timeout_s)
        if not codes:
            raise Unavailable(
                f"the transfer engine at {segment} does not answer within "
                f"{self._options.answer_timeout_s:g} s; is its process stopped?"
            )
        if isinstance(codes[0], str):
            engine.end()
            raise Unavailable(
                f"the transfer engine here cannot ask the one at {segment} ({codes[0]}); `splash doctor` "
                "checks what it needs"
            )
        with self._lock:
            self._idle.append(engine)
        if codes[0] != 0:
            raise Unavailable(
                f"the transfer engine at {segment} cannot be reached (code {codes[0]}); is its port open "
                "from here? See --transport-ports and `splash doctor`"
            )

    def close(self) -> None:
        """End the idle engines; one that is stuck ends with its thread."""
        with self._lock:
            idle, self._idle = self._idle, []
        for engine in idle:
            engine.end()


def _ask(engine: MooncakeEngine, segment: str, codes: list[int | str]) -> None:
    """Leave the library's code, or the words of what it throws."""
    try:
        codes.append(engine.probe(segment))
    except Exception as error:
        codes.append(f"{type(error).__name__}: {error}")
