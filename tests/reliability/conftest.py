"""Property tests draw the same cases every time, and a busy machine does not fail them."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "bounded",
    deadline=None,
    derandomize=True,
    max_examples=120,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("bounded")
