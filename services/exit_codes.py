"""What a command's exit code means: 0 done, 1 failed, 2 bad usage, 3 infeasible."""

from splash_core.errors import ConfigError, Infeasible, InvalidRequest, SplashError


def exit_code(error: SplashError) -> int:
    """The process exit code that an error stands for."""
    if isinstance(error, Infeasible):
        return 3
    return 2 if isinstance(error, ConfigError | InvalidRequest) else 1
