"""What holds for every test of the suite."""

from __future__ import annotations

import os

# One BLAS thread, as the service sets for itself: more of them cost time at these sizes and share two cores badly.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("WANDB_MODE", "disabled")
