"""`python -m devstack`; Ctrl-C while it is still being imported is an answer like any other."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Python ignores what is raised in the callbacks of an import, and an interrupt would be lost in
    # one. Nothing is to be stopped yet, so that it may end this process at once.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from devstack.command_line import main

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
