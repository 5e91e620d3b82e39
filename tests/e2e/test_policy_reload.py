"""The policy changes under load: edits of the file and of the admin API, groups that restart, a canary."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from services.children import Child
from services.listening import free_port
from splash_core.policy.document import parse_document
from splash_core.policy.toml import to_toml
from tests.support.fake_groups import await_ready, start_group
from tests.support.openai_conformance import openai_client
from tests.support.policy_edits import invalid_text, valid_table

pytestmark = pytest.mark.e2e

GROUPS = ("prefill-0", "decode-0", "decode-1")
NUM_EDITS = 100
FLAGS: dict[str, object] = {"fake-step-s": 0.002, "chunk-tokens": 16, "policy": "off"}
LIMIT_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def start(name: str, model: Path, run_dir: Path) -> Child:
    return start_group(name.partition("-")[0], model, run_dir, name=name, flags=FLAGS)


class Deployment:
    """Three groups and a router that watches a file."""

    def __init__(self, model: Path, run_dir: Path) -> None:
        self.model, self.run_dir = model, run_dir
        self.file = run_dir / "policy.toml"
        self.file.write_text("")
        self.http = httpx.Client(timeout=LIMIT_S)
        self.groups = {name: start(name, model, run_dir) for name in GROUPS}
        self.router: Child | None = None

    def start_router(self) -> None:
        port, admin_port = free_port(), free_port()
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}/admin"
        address = {name: f"unix:{self.run_dir / name}.grpc" for name in GROUPS}
        arguments = {
            "model": self.model,
            "served-model-name": "tiny",
            "prefill": address["prefill-0"],
            "decode": f"{address['decode-0']},{address['decode-1']}",
            "port": port,
            "admin-port": admin_port,
            "policy": self.file,
            "run-dir": self.run_dir,
        }
        flags = [f"--{name}={value}" for name, value in arguments.items()]
        self.router = Child("router", ["router", *flags], run_dir=self.run_dir)
        until(self.ready)

    def ready(self) -> bool:
        assert self.router is not None
        death = self.router.death()
        assert death is None, str(death)
        try:
            return self.http.get(f"{self.url}/ready").status_code == 200
        except httpx.ConnectError:
            return False

    def policy(self) -> dict[str, Any]:
        return self.http.get(f"{self.admin}/policy").json()

    def cluster(self) -> list[dict[str, Any]]:
        return self.http.get(f"{self.admin}/cluster").json()["groups"]

    def put(self, text: str) -> httpx.Response:
        return self.http.put(f"{self.admin}/policy", content=text)

    def agrees(self) -> bool:
        """Whether every group decides by the active version."""
        told = self.policy()
        return all(group["version"] == told["version"] for group in told["groups"])

    def restart(self, name: str) -> None:
        self.groups[name].kill()
        (self.run_dir / f"{name}.ready").unlink(missing_ok=True)
        self.groups[name] = start(name, self.model, self.run_dir)
        await_ready(self.run_dir, self.groups[name])

    def close(self) -> None:
        self.http.close()
        for child in (self.router, *self.groups.values()):
            if child is not None:
                child.kill()


@pytest.fixture(scope="module")
def deployment(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tiny_v3, tmp_path_factory.mktemp("p"))
    try:
        await_ready(made.run_dir, *made.groups.values())
        made.start_router()
        yield made
    finally:
        made.close()


@dataclass
class Load:
    """Clients that stream one answer after the other until they are told to stop."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    answers: list[tuple[int, str, str | None]] = field(default_factory=list)
    """Prompt, text, and why it ended."""
    failures: list[Exception] = field(default_factory=list)

    def client(self, number: int) -> None:
        with openai_client(self.url) as client:
            while not self.stop.is_set():
                try:
                    self.answers.append((number, *self._answer(client, number)))
                except openai.OpenAIError as error:
                    self.failures.append(error)

    @staticmethod
    def _answer(client: openai.OpenAI, number: int) -> tuple[str, str | None]:
        text, reason = "", None
        prompt = [(11 * number + position) % 300 for position in range(20 + number)]
        stream = client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=30,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for chunk in stream:
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason or reason
        return text, reason

    def __enter__(self) -> "Load":
        self._threads = [threading.Thread(target=self.client, args=(number,)) for number in range(6)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()


@dataclass
class Watch:
    """Looks at the active version all the time."""

    deployment: Deployment
    stop: threading.Event = field(default_factory=threading.Event)
    seen: list[tuple[int, str]] = field(default_factory=list)
    """Number and digest, as they followed each other."""

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        with httpx.Client(timeout=LIMIT_S) as http:
            while not self.stop.is_set():
                told = http.get(f"{self.deployment.admin}/policy").json()
                found = (told["version"], told["digest"])
                if not self.seen or self.seen[-1] != found:
                    self.seen.append(found)
                time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()


def edit_by_file(deployment: Deployment, text: str, *, valid: bool) -> None:
    """Write the file, and wait until the router has taken it or said why not."""
    before = deployment.policy()
    deployment.file.write_text(text)
    if valid:
        digest = parse_document(text).digest
        until(lambda: (told := deployment.policy())["digest"] == digest and told["file"]["error"] is None)
        return
    until(lambda: deployment.policy()["rejected"] != before["rejected"])
    told = deployment.policy()
    assert told["rejected"]["source"] == f"file {deployment.file}"
    assert told["file"]["error"] == told["rejected"]["reason"]
    assert (told["version"], told["text"]) == (before["version"], before["text"])


def edit_by_hand(deployment: Deployment, text: str, *, valid: bool) -> None:
    """Put the text; a bad one changes nothing and says why."""
    before = deployment.policy()
    answer = deployment.put(text)
    if valid:
        assert answer.status_code == 200, answer.text
        assert answer.json()["digest"] == parse_document(text).digest
        return
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("policy: ")
    told = deployment.policy()
    assert (told["version"], told["text"]) == (before["version"], before["text"])


def test_a_hundred_edits_under_load_drop_no_request_and_leave_the_last_valid_version(
    deployment: Deployment,
) -> None:
    draw = random.Random(20)
    allowed, last = {parse_document("").digest}, ""
    with Load(deployment.url) as load, Watch(deployment) as watch:
        until(lambda: len(load.answers) >= 12)
        for number in range(NUM_EDITS):
            valid = draw.random() < 0.6
            text = to_toml(valid_table(draw, groups=GROUPS)) if valid else invalid_text(draw)
            text += f"\n# edit {number}\n"
            if valid:
                last = text
                allowed.add(parse_document(text).digest)
            edit = edit_by_file if draw.random() < 0.25 else edit_by_hand
            edit(deployment, text, valid=valid)
        until(deployment.agrees)
    switches = sum(group["layout_epoch"] for group in deployment.cluster())
    assert switches > 0
    assert load.failures == []
    assert {reason for _, _, reason in load.answers} == {"length"}
    assert len({(prompt, text) for prompt, text, _ in load.answers}) == 6
    numbers = [number for number, _ in watch.seen]
    assert numbers == sorted(set(numbers))
    assert {digest for _, digest in watch.seen} <= allowed
    told = deployment.policy()
    assert told["digest"] == parse_document(last).digest
    assert {group["digest"] for group in told["groups"]} == {told["digest"]}
    assert {group["trouble"] for group in told["groups"]} == {None}
    until(lambda: deployment.http.get(f"{deployment.admin}/audit").json()["pages_held"] == 0)


def test_a_restarted_group_gets_the_version_in_force(deployment: Deployment) -> None:
    assert deployment.put('[decode]\nallowed = ["TP", "DP"]\nmargin = 0.125').status_code == 200
    deployment.restart("decode-1")
    until(deployment.agrees)
    told = deployment.policy()["groups"][2]
    assert (told["group"], told["effective"]["margin"]) == ("decode-1", 0.125)


def test_a_canary_beside_another_group_is_compared_with_it_and_promoted(deployment: Deployment) -> None:
    canary = {"group": "decode-1", "period_s": 1, "metric": "step_ms", "tolerance": 10.0, "min_steps": 20}
    assert deployment.put(to_toml({"canary": canary | {"try": {"margin": 0.5}}})).status_code == 200
    with Load(deployment.url) as load:
        until(lambda: bool(deployment.policy()["canaries"]))
    assert load.failures == []
    until(deployment.agrees)
    told = deployment.policy()
    record = told["canaries"][-1]
    assert record["verdict"] == "PROMOTE", record
    assert record["comparison"]["against"] == "by decode-0"
    assert min(record["comparison"]["steps"]) >= 20
    assert told["document"] == {"decode": {"margin": 0.5}}
    records = deployment.http.get(f"{deployment.admin}/decisions?last=1000&phase=decode").json()
    assert "PROMOTE" in [entry["verdict"] for entry in records]
