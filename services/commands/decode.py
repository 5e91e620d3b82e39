"""`splash decode`: one decode group, as containers run it."""

import typer

from services.decode.main import serve
from services.options import settings_command
from services.standalone import prepare
from splash_core.config import GroupSettings

app = typer.Typer()


@settings_command(app, "decode", GroupSettings)
def decode(settings: GroupSettings, as_json: bool) -> int:
    """Run one decode group until SIGTERM, which drains it.

    Example: `splash decode --model smollm2-mla --ranks 2 --host 0.0.0.0 --port 9001`
    """
    del as_json
    return serve(prepare(settings, settings.group or "decode-0"))
