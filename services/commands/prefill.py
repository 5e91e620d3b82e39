"""`splash prefill`: one prefill group, as containers run it."""

import typer

from services.options import settings_command
from services.prefill.main import serve
from services.standalone import prepare
from splash_core.config import GroupSettings

app = typer.Typer()


@settings_command(app, "prefill", GroupSettings)
def prefill(settings: GroupSettings, as_json: bool) -> int:
    """Run one prefill group until SIGTERM, which drains it.

    Example: `splash prefill --model smollm2-mla --ranks 2 --host 0.0.0.0 --port 9001`
    """
    del as_json
    return serve(prepare(settings, settings.group or "prefill-0"))
