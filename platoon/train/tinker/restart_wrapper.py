"""Removed in platoon 0.3.0: `platoon train` itself starts a run again that died."""

import sys

_GONE = (
    "platoon.train.tinker.restart_wrapper: platoon 0.3.0 removed it; set watchdog.max_restarts and run platoon train"
)
if __name__ == "__main__":
    print(f"platoon: {_GONE}", file=sys.stderr)
    sys.exit(78)
raise ImportError(_GONE)
