"""`splash router`: the gateway, its admin port, and the way to the groups."""

import os
import signal

import typer

from services.options import settings_command
from services.router.config import RouterConfig
from services.router.main import run
from services.run_folders import run_folder
from splash_core.config import RouterSettings, admin_key, api_key
from splash_core.errors import ConfigError
from splash_core.leader.build import resolve_model
from splash_core.leader.fingerprint import served_fingerprint
from splash_core.obs.lifeline import die_with_parent
from splash_core.obs.logging import configure

app = typer.Typer()


@settings_command(app, "router", RouterSettings)
def router(settings: RouterSettings, as_json: bool) -> int:
    """Serve the OpenAI gateway and the admin port over running groups; SIGTERM drains.

    Example: `splash router --model smollm2-mla --prefill 127.0.0.1:9001 --decode 127.0.0.1:9002`
    """
    del as_json
    if settings.parent_pid:
        die_with_parent(settings.parent_pid, death_signal=signal.SIGKILL)
    for phase, addresses in (("prefill", settings.prefill), ("decode", settings.decode)):
        if not _addresses(addresses):
            raise ConfigError(f"--{phase} is required: HOST:PORT of each {phase} group, separated by commas")
    run_dir = run_folder(settings.run_dir) if settings.run_dir else None
    configure("router", run_dir=run_dir, log_format=settings.log_format, to_stderr=run_dir is None)
    return run(router_config(settings))


def router_config(settings: RouterSettings) -> RouterConfig:
    """The router's own settings from those of the command line."""
    model = resolve_model(settings.model)
    return RouterConfig(
        model=model,
        fingerprint=served_fingerprint(settings, model),
        prefill=_addresses(settings.prefill),
        decode=_addresses(settings.decode),
        served_names=(settings.served_model_name or os.path.basename(settings.model.rstrip("/")),),
        host=settings.host,
        port=settings.port,
        admin_host=settings.admin_host,
        admin_port=settings.admin_port,
        api_key=api_key(settings) or None,
        admin_key=admin_key(settings) or None,
        drain_timeout_s=settings.drain_timeout_s,
        policy=settings.policy,
        probe_every_s=settings.canary_every_s,
    )


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(address.strip() for address in text.split(",") if address.strip())
