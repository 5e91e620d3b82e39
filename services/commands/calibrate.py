"""`splash calibrate`: what predicts step times on a group's devices, as a profile."""

import typer

from services.bench.calibrate_command import calibrate
from services.bench.calibrate_settings import CalibrateSettings
from services.options import settings_command

app = typer.Typer()

settings_command(app, "calibrate", CalibrateSettings)(calibrate)
