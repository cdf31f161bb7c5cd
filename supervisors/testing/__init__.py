"""What tests of supervised programs need: virtual time on both backends.

anyio.run(main, backend="asyncio", backend_options=virtual("asyncio")[1])

@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return virtual(request.param)
"""

from supervisors.testing.clock import Stuck, virtual

__all__ = ["Stuck", "virtual"]
