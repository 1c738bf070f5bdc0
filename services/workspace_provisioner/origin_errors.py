"""The errors of submodules, each with its reason, a sentence and a remedy."""

from __future__ import annotations

from chassis.errors import FailedPrecondition, InvalidArgument, ResourceExhausted


class SubmodulesInvalid(InvalidArgument):
    """The commit's `.gitmodules` cannot be used."""

    def __init__(self, fault: str) -> None:
        super().__init__(
            f"The commit's .gitmodules cannot be used: it {fault}.",
            reason="submodules_invalid",
            remedy="Correct .gitmodules and commit it; `git submodule status` shows what git sees.",
        )


class SubmoduleUnavailable(FailedPrecondition):
    """A submodule's commit could not be fetched or checked out."""

    def __init__(self, path: str, cause: str, *, detail: str) -> None:
        super().__init__(
            f"The submodule at {path} could not be had: {detail}.",
            reason="submodule_unavailable",
            remedy="Look at its url in .gitmodules and at the host's credentials for it, or launch"
            " without submodules.",
            fields={"path": path, "cause": cause},
        )


class SubmodulesTooLarge(ResourceExhausted):
    """There are more submodules than a host takes on, or they nest too deep or have too many
    bytes.
    """

    def __init__(self, rule: str) -> None:
        super().__init__(
            f"The submodules are too many for this host: {rule}.",
            reason="submodules_too_large",
            remedy="Launch without submodules, and fetch those that are needed in the sandbox.",
        )
