"""`python -m devstack`; Ctrl-C while it is still being imported is an answer like any other."""

from __future__ import annotations

if __name__ == "__main__":
    try:
        from devstack.command_line import main

        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
