"""Tools for tests of supervised programs: virtual time on both backends, scripted children, a recorder of events.

    anyio.run(main, backend="asyncio", backend_options=virtual("asyncio")[1])

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(request):
        return virtual(request.param)

`docs/supervisors.md` shows how to use them.
"""

from supervisors.testing.clock import Stuck, virtual
from supervisors.testing.recorder import Recorder
from supervisors.testing.scripts import Boom, Leave, Script

__all__ = ["Boom", "Leave", "Recorder", "Script", "Stuck", "virtual"]
