"""`python -m services`: the same as the `splash` script, for child processes."""

from services.cli import main

main()
