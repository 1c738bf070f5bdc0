"""Fixtures of the SDK's suites over scripted rooms."""

from __future__ import annotations

from tests.sdk_fixtures import own_environment, repository

__all__ = ["own_environment", "repository"]
