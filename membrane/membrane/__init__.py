"""Python objects that live behind a wall, used through proxies."""

from membrane.errors import (
    AccessRefused,
    ChildLost,
    DeadlineExceeded,
    GrowthRefused,
    IsolationWarning,
    MembraneError,
    MemoryExceeded,
    ModuleLeak,
    ModuleUnreachable,
    ProtocolError,
    RemoteError,
    SessionConflict,
    UnsupportedUse,
)
from membrane.isolating import (
    close_session,
    effective_policy,
    isolate,
    policy_trace,
    prewarm,
    read_attributes,
)
from membrane.outcomes import Outcome, Outcomes
from membrane.policies import PolicyTrace
from membrane.proxies import close

__all__ = [
    "AccessRefused",
    "ChildLost",
    "DeadlineExceeded",
    "GrowthRefused",
    "IsolationWarning",
    "MembraneError",
    "MemoryExceeded",
    "ModuleLeak",
    "ModuleUnreachable",
    "Outcome",
    "Outcomes",
    "PolicyTrace",
    "ProtocolError",
    "RemoteError",
    "SessionConflict",
    "UnsupportedUse",
    "close",
    "close_session",
    "effective_policy",
    "isolate",
    "policy_trace",
    "prewarm",
    "read_attributes",
]
