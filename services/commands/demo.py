"""`splash demo`: the whole system on the demo model, on this machine, with its own proof."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Annotated

import httpx
import openai
import psutil
import typer
from rich.console import Console

from services.admin_client import AdminClient
from services.commands.layout import Json
from services.commands.model import fetch_demo_model
from services.demo.render import show
from services.demo.report import DemoReport
from services.demo.scenario import DECODE, PREFILL, DemoTarget, run
from services.exit_codes import Exit
from services.launch import Stack
from services.progress import progress_console, stages
from splash_core.config import UpSettings, resolve
from splash_core.errors import SplashError

app = typer.Typer()

PAGE_SIZE = 16
KV_BYTES = 24 << 20
CHUNK_TOKENS = 10


@app.command("demo")
def demo(
    started_at: Annotated[
        float | None, typer.Option(help="When set-up began, seconds since 1970; default: now.", hidden=True)
    ] = None,
    transport: Annotated[str, typer.Option(help="shm or mooncake: how KV pages cross.")] = "shm",
    as_json: Json = False,
) -> None:
    """Ask a real question, then switch both phases through all twelve directions while tokens stream.

    Example: `splash demo --json`
    """
    began = time.time() if started_at is None else started_at
    console = progress_console()
    model = fetch_demo_model()
    report = DemoReport(model=model.name, setup_s=time.time() - began)
    began_run = time.monotonic()
    stack = Stack(demo_settings(model, transport))
    console.print(f"logs: {stack.run_dir}", soft_wrap=True)
    try:
        _run(stack, report, console)
    except (SplashError, openai.OpenAIError, httpx.HTTPError, OSError) as error:
        report.failures.append(f"{type(error).__name__}: {error}")
    report.run_s = time.monotonic() - began_run
    if as_json:
        sys.stdout.write(json.dumps(report.to_json()) + "\n")
    show(report, console if as_json else Console())
    if not report.ok:
        console.print(f"logs: {stack.run_dir}", soft_wrap=True)
    raise typer.Exit(Exit.DONE if report.ok else Exit.FAILED)


def demo_settings(model: Path, transport: str) -> UpSettings:
    """Pages so small that borrowed slots hold KV, chunks so small that switches fit between them."""
    return dataclasses.replace(
        resolve(UpSettings, flags={"transport": transport}, environ={}),
        model=str(model),
        prefill_layout=PREFILL.start,
        decode_layout=DECODE.start,
        policy="off",
        canary_every_s=0.0,
        port=0,
        admin_port=0,
        page_size=PAGE_SIZE,
        kv_bytes=KV_BYTES,
        chunk_tokens=CHUNK_TOKENS,
        max_model_len=384,
    )


def _run(stack: Stack, report: DemoReport, console: Console) -> None:
    processes: list[psutil.Process] = []
    try:
        with stages(console, "demo") as progress:
            progress("starting router, prefill group and decode group")
            stack.start()
            processes += _descendants(stack)
            client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
            with client, AdminClient(stack.admin_url, "") as admin:
                run(DemoTarget(client=client, admin=admin, model=report.model), report, progress)
            progress("shutting down")
            stack.stop(drain=True)
    except BaseException:
        stack.stop(drain=False)
        raise
    _, left = psutil.wait_procs(processes, timeout=5.0)
    report.failures += [f"process {process.pid} is left after shutdown" for process in left]


def _descendants(stack: Stack) -> list[psutil.Process]:
    """The stack's processes and all that they have started."""
    services = [psutil.Process(pid) for pid in stack.pids.values()]
    return services + [child for service in services for child in service.children(recursive=True)]
