"""Imported first by every test module here: without the native core, it is skipped."""

from __future__ import annotations

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")
