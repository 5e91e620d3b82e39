"""A router over scripted groups, in a thread of its own, for tests that need a real socket."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from services.router.config import RouterConfig
from services.router.fake_backend import FakeBackend
from services.router.main import Ports, serve
from splash_core.pb import common_pb2

T = TypeVar("T")

SPECIAL = ("<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{{ bos_token }}\n{% for message in messages %}\n"
    "{% if message['role'] == 'assistant' and not message['content'] %}\n"
    "{{ raise_exception('an assistant message is empty') }}\n{% endif %}\n"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|end|>\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n<|assistant|>\n{% endif %}"
)
MERGED = ("Ġt", "Ġth", "Ġthe", "in", "an", "Ã©")
"""Tokens of several bytes; the last is é, so its two bytes also exist apart."""


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer with a few merges: bytes, then `MERGED`, then `SPECIAL`."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: index for index, char in enumerate([*alphabet, *MERGED])}
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("i", "n"), ("a", "n"), ("Ã", "©")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    bos = tokenizer.token_to_id(SPECIAL[0])
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], bos)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    bos_entry = {"__type": "AddedToken", "content": SPECIAL[0], **flags}
    settings = {"bos_token": bos_entry, "eos_token": SPECIAL[1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    eos = tokenizer.token_to_id(SPECIAL[1])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos]}))
    (folder / "config.json").write_text(json.dumps({"vocab_size": tokenizer.get_vocab_size() + 5}))
    return folder


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a byte, so that every character of several bytes is split."""
    table = {bytes([byte]): char for byte, char in _byte_chars().items()}
    vocab = tokenizer.get_vocab()
    return [vocab[table[bytes([byte])]] for byte in text.encode()]


def _byte_chars() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in chars]
    return chars | {byte: chr(256 + index) for index, byte in enumerate(others)}


LETTERS = "abcdefgh the in an\n"


def letters(tokenizer: Tokenizer) -> Callable[[Sequence[int], common_pb2.Sampling], Sequence[int]]:
    """Endless text that depends on the prompt and, unless greedy, on the seed."""
    alphabet = spell(tokenizer, LETTERS)

    def script(prompt: Sequence[int], sampling: common_pb2.Sampling) -> list[int]:
        state = sum(prompt) + (sampling.seed * 7919 if sampling.temperature else 0)
        tokens: list[int] = []
        for _ in range(sampling.max_tokens):
            state = (state * 1103515245 + 12345) % (1 << 31)
            tokens.append(alphabet[(state >> 8) % len(alphabet)])
        return tokens

    return script


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRouter:
    """A router that serves on loopback, and the scripted groups behind it."""

    ports: Ports
    backend: FakeBackend
    tokenizer: Tokenizer
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.admin_port}"

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the loop of router and groups."""

        async def body() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(body(), self.loop).result(10)


@contextmanager
def running_router(folder: Path, **settings: object) -> Iterator[RunningRouter]:
    """Serve the model in `folder` over scripted groups until the block ends."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ready = threading.Event()
    found: list[RunningRouter] = []
    failures: list[BaseException] = []

    async def main() -> None:
        backend = FakeBackend(letters(tokenizer), vocab=tokenizer.get_vocab_size())
        await backend.start()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        config = RouterConfig(
            **{  # type: ignore[arg-type]
                "model": folder,
                "prefill": (backend.addresses["prefill"],),
                "decode": (backend.addresses["decode"],),
                "served_names": ("test-model",),
                "port": 0,
                "admin_port": 0,
                "poll_interval_s": 0.02,
                "drain_hold_s": 0.0,
                **settings,
            }
        )

        def on_start(ports: Ports) -> None:
            found.append(
                RunningRouter(
                    ports=ports,
                    backend=backend,
                    tokenizer=tokenizer,
                    loop=loop,
                    stop=lambda: loop.call_soon_threadsafe(stop.set) and None,
                )
            )
            ready.set()

        try:
            await serve(config, stop=stop, on_start=on_start)
        finally:
            await backend.stop()

    def body() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            ready.set()

    thread = threading.Thread(target=body, name="router", daemon=True)
    thread.start()
    assert ready.wait(20), "the router did not start"
    assert not failures, failures
    router = found[0]
    try:
        yield router
    finally:
        router.stop()
        thread.join(20)
        assert not thread.is_alive(), "the router did not stop"
