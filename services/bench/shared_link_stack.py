"""What `splash bench shared-link` measures: a stack over two hosts, its groups' ranks on either side.

    host A   prefill rank, decode rank 0        host B   decode rank 1

So pages of half the requests cross the link, and so does what decode's ranks send each other. Leaders and the
router talk over Unix sockets, which know no hosts. Invariant: leaving the block ends every process.
"""

import time
from pathlib import Path
from types import TracebackType

import httpx

from services.bench.settings import words
from services.bench.shared_link_settings import SharedLinkSettings
from services.bench.two_hosts import TwoHosts
from services.bench.two_hosts_group import PlacedGroup
from services.children import Child
from services.listening import free_port
from splash_core.checkpoints.tiny import write_tiny
from splash_core.config import GroupSettings, RouterSettings
from splash_core.errors import Unavailable
from splash_core.policy.snapshot import Phase
from splash_core.settings_base import as_flags

_START_S = 120.0
_KV_BYTES = 1200 << 20
_NO_LIMIT = {"link_pause_s": 0.0, "link_in_flight": 64, "link_chunk_bytes": 4 << 20}
"""As if there were no arbiter: no budget, no turns, no pauses."""


def write_model(folder: Path, settings: SharedLinkSettings) -> Path:
    """A model with much KV and little to compute."""
    return write_tiny(
        folder / "wide-rows",
        family="v2",
        seed=settings.seed,
        q_lora_rank=None,
        layers=settings.layers,
        heads=2,
        kv_lora_rank=512,
        rope_dim=64,
        num_experts=0,
        rope="default",
        max_positions=8192,
    )


class SharedLinkStack:
    """A context manager; inside the block the gateway is ready."""

    def __init__(
        self, settings: SharedLinkSettings, hosts: TwoHosts, *, model: Path, folder: Path, arbiter: bool
    ) -> None:
        self._settings = settings
        self._hosts = hosts
        self._model = model
        self._folder = folder
        self._arbiter = arbiter
        self._children: list[Child] = []
        port = free_port()
        self._port, self._admin_port = port, free_port(taken=port)
        self.url = f"http://127.0.0.1:{self._port}"
        self.admin_url = f"http://127.0.0.1:{self._admin_port}"

    def __enter__(self) -> "SharedLinkStack":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for placed in self._groups():
            path = self._folder / f"{placed.settings.group}.json"
            placed.write(path)
            self._start_child(placed.settings.group, [str(path)], module="services.bench.two_hosts_group")
        router = RouterSettings(
            model=str(self._model),
            prefill=self._listen("prefill-0"),
            decode=self._listen("decode-0"),
            port=self._port,
            admin_port=self._admin_port,
            canary_every_s=0.0,
            run_dir=str(self._folder),
        )
        self._start_child("router", ["router", *as_flags(router)], module="services")
        self._await_ready()

    def _start_child(self, name: str, arguments: list[str], *, module: str) -> None:
        self._children.append(Child(name, arguments, run_dir=self._folder, module=module))

    def _groups(self) -> list[PlacedGroup]:
        a, b = self._hosts.a, self._hosts.b
        return [
            PlacedGroup(phase=Phase.PREFILL, settings=self._group("prefill-0", 1), hosts=[a]),
            PlacedGroup(phase=Phase.DECODE, settings=self._group("decode-0", 2), hosts=[a, b]),
        ]

    def _group(self, name: str, ranks: int) -> GroupSettings:
        settings = self._settings
        limits = {
            "link_pause_s": settings.pause_s,
            "link_bytes_per_s": settings.budget * settings.link_bps,
        }
        return GroupSettings(
            model=str(self._model),
            group=name,
            ranks=ranks,
            layout=words(settings.layouts)[0],
            layouts=settings.layouts,
            policy="off",
            transport="mooncake",
            page_size=settings.page_size,
            kv_bytes=_KV_BYTES,
            host_ranks=3,
            precopy_bytes_per_step=settings.precopy_bytes_per_step,
            listen=self._listen(name),
            run_dir=str(self._folder),
            **(limits if self._arbiter else _NO_LIMIT),  # type: ignore[arg-type]
        )

    def _listen(self, name: str) -> str:
        return f"unix:{self._folder / name}.grpc"

    def _await_ready(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            for child in self._children:
                if (death := child.death()) is not None:
                    raise Unavailable(f"{death}; logs are in {self._folder}")
            try:
                if httpx.get(f"{self.url}/ready", timeout=2.0).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        raise Unavailable(f"the stack was not ready within {_START_S:g} s; logs are in {self._folder}")

    def _stop(self) -> None:
        for child in reversed(self._children):
            child.terminate()
        for child in reversed(self._children):
            child.wait(10.0)
            child.kill()
