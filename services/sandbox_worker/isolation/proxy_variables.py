"""How programs hear of their sandbox's proxy."""

from __future__ import annotations

from collections.abc import Mapping


def proxy_variables(port: int) -> Mapping[str, str]:
    """Return the environment that makes programs use a proxy on their own loopback interface.

    Names in both cases, as there is no standard; Node.js looks at them when it is told to.
    """
    proxy = f"http://127.0.0.1:{port}"
    own = "localhost,127.0.0.1,::1"
    named = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "NO_PROXY": own}
    lower = {name.lower(): value for name, value in named.items()}
    return {**named, **lower, "NODE_USE_ENV_PROXY": "1"}
