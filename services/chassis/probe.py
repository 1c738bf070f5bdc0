"""`python -m chassis.probe TARGET`: exit 0 when a service says that it serves, else 1.

Container health checks call it. TARGET is `http://…` (any 2xx answer) or `grpc://host:port`
(grpc.health.v1, the server as a whole).
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

SECONDS = 4.0


def http_serves(url: str) -> bool:
    """Say whether a GET of `url` is answered with a 2xx status."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310 - the operator names the URL
            return bool(200 <= answer.status < 300)
    except (urllib.error.URLError, OSError):
        return False


def grpc_serves(target: str) -> bool:
    """Say whether the health service at `target` answers SERVING."""
    import grpc
    from grpc_health.v1 import health_pb2

    with grpc.insecure_channel(target) as channel:
        check: grpc.UnaryUnaryMultiCallable[
            health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        ] = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError:
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def serves(target: str) -> bool:
    """Probe `target`, whichever of the two forms it has."""
    if target.startswith("grpc://"):
        return grpc_serves(target.removeprefix("grpc://"))
    return http_serves(target)


if __name__ == "__main__":
    raise SystemExit(0 if serves(sys.argv[1]) else 1)
