"""Requests through a whole stack while both groups switch: one course, for CPUs and for GPUs.

Invariant: the answer is the tokens, so it can be compared, whatever device, layout or switch they came from.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from services.admin_client import AdminClient
from services.launch import Stack
from splash_core.config import UpSettings
from splash_core.layout.layout import Layout
from tests.support.transports import eventually

PROMPTS = tuple(tuple((11 + 13 * i + 5 * at) % 250 for at in range(5 + 31 * i)) for i in range(4))
"""The longest takes several chunks, so that prefill has steps between which to switch."""
TOKENS = 20
WITHIN_S = 600.0
"""On a GPU the first answer waits for kernels to be compiled."""
Tokens = list[list[str]]

STACK: dict[str, Any] = {
    "dtype": "fp32",
    "page_size": 4,
    "kv_bytes": 600_000,
    "max_model_len": 200,
    "chunk_tokens": 16,
    "max_running": 8,
    "push_range_bytes": 1,
    "precopy_bytes_per_step": 4096,
    "policy": "off",
    "layouts": ",".join(Layout),
    "port": 0,
    "admin_port": 0,
}
"""Small pages, chunks and ranges: a prompt has many of each."""


@contextmanager
def serving(model: Path, run_dir: Path, **settings: Any) -> Iterator["Served"]:
    """A stack that is up."""
    with (
        Stack(UpSettings(model=str(model), run_dir=str(run_dir), **(STACK | settings))) as stack,
        AdminClient(stack.admin_url, "") as admin,
        httpx.Client(base_url=stack.url, timeout=WITHIN_S) as gateway,
    ):
        yield Served(admin, gateway, model.name)


class Served:
    """A stack, as a client and its operator see it."""

    def __init__(self, admin: AdminClient, gateway: httpx.Client, model: str) -> None:
        self._admin = admin
        self._gateway = gateway
        self._model = model

    def set_layout(self, phase: str, layout: Layout) -> bool:
        """Switch; was there something to switch?"""
        answer = self._admin.post("/admin/layout", {"phase": phase, "layout": layout, "hold_s": 3600.0})
        assert answer["to"] == layout
        return answer["from"] != answer["to"]

    def tokens(self, prompts: Sequence[Sequence[int]] = PROMPTS) -> Tokens:
        """Greedy answers to all prompts, which run at once."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self._complete, prompts))

    def tokens_while_switching(self, prefill: Layout, decode: Layout) -> tuple[Tokens, int]:
        """The same, from these layouts on and while both groups go on to others; and how often they did."""
        self.set_layout("prefill", prefill)
        self.set_layout("decode", decode)
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            switching = pool.submit(self._switch_until, done, prefill, decode)
            try:
                tokens = self.tokens()
            finally:
                done.set()
            return tokens, switching.result()

    def until_empty(self) -> None:
        """Wait until no page is held; fails if that never comes."""
        eventually(lambda: self._admin.get("/admin/audit")["pages_held"] == 0, "no page is held")

    def _complete(self, prompt: Sequence[int]) -> list[str]:
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 1,
        }
        answer = self._gateway.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["logprobs"]["tokens"]

    def _switch_until(self, done: threading.Event, prefill: Layout, decode: Layout) -> int:
        """Each group in turn to its next layout, twice at least."""
        rounds = {"prefill": _after(prefill), "decode": _after(decode)}
        switches = 0
        for phase in cycle(rounds):
            if done.is_set() and switches >= len(rounds):
                return switches
            switches += self.set_layout(phase, next(rounds[phase]))
            time.sleep(0.01)
        raise AssertionError("unreachable: a cycle does not end")


def _after(layout: Layout) -> Iterator[Layout]:
    """All layouts in turn, beginning with the one after this."""
    layouts = list(Layout)
    start = layouts.index(layout) + 1
    return cycle(layouts[start:] + layouts[:start])
