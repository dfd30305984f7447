"""`python -m eagle3chat`, and the console script."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130  # 128 + SIGINT


def main() -> int:
    """Run the command line of this process; the exit code. Ctrl+C shows no traceback, at whatever it comes."""
    try:
        from eagle3chat.cli import main as run  # here: reading it takes a moment, in which one can press Ctrl+C

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(
                signal.SIGINT, signal.SIG_DFL
            )  # while the interpreter ends: a signal ends it, nothing is raised


if __name__ == "__main__":
    sys.exit(main())
