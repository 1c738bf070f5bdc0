"""What the SDK can use and does not need."""

from __future__ import annotations

import subprocess
import sys


def test_the_sdk_imports_no_opentelemetry_by_itself() -> None:
    program = """
import sys
import fairlead_sdk.fairlead, fairlead_sdk.tunnel_line
from fairlead_sdk.tracing import client_span, trace_headers
with client_span("launch.request"):
    assert trace_headers() == {}
sys.exit(any(name.split(".")[0] == "opentelemetry" for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
