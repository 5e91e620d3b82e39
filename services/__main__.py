"""`python -m services`: the same as the `splash` script, for child processes."""

from services.cli import main

# Guarded: rank processes of a benchmark import this module again.
if __name__ == "__main__":
    main()
