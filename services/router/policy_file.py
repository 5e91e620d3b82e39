"""The policy file that a router watches: what it says becomes the active version, if it is valid.

Invariant: a text is taken once it has been the same for two looks, so a file that is being written is not
taken half; each text is taken, or refused with the reason, once.
"""

import asyncio
import logging
from collections.abc import Callable

from services.router.policy_keeper import PolicyKeeper
from splash_core.errors import ConfigError, InvalidRequest
from splash_core.policy.config import read_policy_file
from splash_core.policy.document import parse_document

LOOK_S = 0.25
_LOG = logging.getLogger("splash.router")


class PolicyFile:
    """Looks at a file now and then, by its content: times of files can lie."""

    def __init__(
        self,
        path: str,
        keeper: PolicyKeeper,
        *,
        taken: str,
        on_change: Callable[[], None],
        read: Callable[[str], str] = read_policy_file,
    ) -> None:
        self.path = path
        self._keeper = keeper
        self._on_change = on_change
        self._read = read
        self._taken: str | None = taken
        """The text that was dealt with last, well or not."""
        self._last: str | None = taken
        """The text at the last look."""
        self._wrong: str | None = None
        """What is wrong with `_taken`."""
        self._broken: str | None = None
        """Why the file could not be read at the last look."""

    @property
    def error(self) -> str | None:
        """Why the file, as it is now, is not in force."""
        return self._broken or self._wrong

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception as error:  # what is wrong with one text must not end all looks that come later
                self._broken = f"{type(error).__name__}: {error}"
                _LOG.exception("policy file %s cannot be taken", self.path)

    async def look(self) -> None:
        """Take what is new, if it is whole and valid."""
        try:
            text = await asyncio.to_thread(self._read, self.path)
        except ConfigError as error:
            if self._broken is None:
                self._keeper.reject(str(error), source=f"file {self.path}")
            self._broken, self._last = str(error), None
            return
        self._broken = None
        settled, self._last = text == self._last, text
        if settled and text != self._taken:
            self._taken = text
            self._take(text)

    def _take(self, text: str) -> None:
        try:
            document = parse_document(text, source=self.path)
            self._keeper.apply(document, source=f"file {self.path}")
        except (ConfigError, InvalidRequest) as error:
            self._wrong = str(error)
            self._keeper.reject(self._wrong, source=f"file {self.path}")
            return
        self._wrong = None
        self._on_change()
