"""One real broker for the tests of a module, and its administrator."""

from collections.abc import AsyncIterator, Iterator

import pytest

from orderlymq import AdminClient
from tests.cluster.processes import Group


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A name server and one broker, for everything that needs no fail-over."""
    with Group(tmp_path_factory.mktemp("single"), replicas=1) as found:
        yield found


@pytest.fixture
async def admin(group: Group) -> AsyncIterator[AdminClient]:
    """An administrator of that broker."""
    async with AdminClient(group.name_server_address) as client:
        yield client
