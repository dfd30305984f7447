"""Property tests draw the same cases every time, and a busy machine does not fail them.

EAGLE3CHAT_FUZZ=long draws many more, other ones every time.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "bounded",
    deadline=None,
    derandomize=True,
    max_examples=120,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.register_profile(
    "long", settings.get_profile("bounded"), derandomize=False, max_examples=1000, print_blob=True
)
settings.load_profile(os.environ.get("EAGLE3CHAT_FUZZ", "bounded"))
