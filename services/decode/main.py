"""Starts one decode group: settings to blueprint to process."""

import asyncio

from services.decode.servicer import DecodeService
from splash_core.config import GroupSettings
from splash_core.leader.build import draw_blueprint
from splash_core.leader.gpus import check_gpus
from splash_core.leader.reaching import transport_options
from splash_core.leader.service import GroupProcess
from splash_core.policy.snapshot import Phase
from splash_core.transport.reach import check_reach


def serve(settings: GroupSettings) -> int:
    """Run the group until it is told to stop or fails; returns the exit code."""
    check_reach(transport_options(settings))
    check_gpus(settings)
    process = GroupProcess(draw_blueprint(settings, Phase.DECODE), DecodeService)
    return asyncio.run(process.run())
