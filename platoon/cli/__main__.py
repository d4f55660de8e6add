"""`python -m platoon.cli`."""

from __future__ import annotations

import sys

from platoon.cli import main

sys.exit(main())
