"""Where this package lies: what the programs that it is read in, started without the site's
packages (`-I -S`), are to look through.
"""

from __future__ import annotations

import os

OWN_PLACE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
"""The directory, or the archive, that holds `fairlead_walls`."""
