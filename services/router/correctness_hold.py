"""Carries out what follows from a drift: pins a group, as `splash layout pin` does, and sees whether it is.

Invariant: a pin that may have been made counts as made: it is told, and the alarm lasts until it has gone.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.router.registry import Registry
from splash_core.errors import Conflict, InvalidRequest, SplashError
from splash_core.pb import control_pb2
from splash_core.policy.correctness_notes import Remedy
from splash_core.policy.correctness_record import Treated

PIN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Pins groups."""

    registry: Registry
    clock: Callable[[], float]
    """That of the registry."""
    timeout_s: float = PIN_TIMEOUT_S

    async def treat(self, remedy: Remedy, address: str) -> Treated:
        """What came of a remedy for the group at an address."""
        if not remedy.to:
            return Treated(remedy=remedy)
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.registry.workers[address].pin(control_pb2.PinRequest(layout=remedy.to))
        except (InvalidRequest, Conflict) as error:
            return Treated(remedy=remedy, trouble=str(error))
        except TimeoutError:
            return await self._looked_after(remedy, address, f"no answer within {self.timeout_s:g} s")
        except SplashError as error:
            return await self._looked_after(remedy, address, str(error))
        self.registry.suspect(address)
        return Treated(remedy=remedy)

    async def _looked_after(self, remedy: Remedy, address: str, cause: str) -> Treated:
        """An answer that is lost says nothing of the pin; the group's state does."""
        looked_at_s = self.clock()
        await self.registry.refresh(address)
        record = self.registry.record(address)
        if record.error is not None or record.state is None or record.asked_at_s < looked_at_s:
            return Treated(remedy=remedy, doubt=cause)
        if record.state.policy.pinned == remedy.to:
            return Treated(remedy=remedy)
        return Treated(remedy=remedy, trouble=cause)
