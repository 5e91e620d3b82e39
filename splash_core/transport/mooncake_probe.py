"""Is a peer's engine alive, asked before the first write.

The first contact of an engine with a hung peer blocks it for a minute. So an engine that writes nothing asks,
in a thread that is left behind when no answer comes. Invariant: `check` returns or raises within its timeout.
"""

import threading

from splash_core.errors import Unavailable
from splash_core.transport.mooncake_engine import Engine
from splash_core.transport.mooncake_library import new_engine
from splash_core.transport.options import TransportOptions


class Prober:
    """Asks peers, one at a time for each engine; an engine that is stuck is replaced."""

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        self._idle: list[Engine] = []
        self._lock = threading.Lock()

    def check(self, segment: str) -> None:
        """Return if the engine `segment` answers.

        Raises:
            Unavailable: it refuses, or does not answer in time.
        """
        with self._lock:
            engine = self._idle.pop() if self._idle else None
        engine = engine or new_engine(self._options)
        codes: list[int] = []
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


def _ask(engine: Engine, segment: str, codes: list[int]) -> None:
    codes.append(engine.probe(segment))
