"""The TCP transport sits its exam."""

import pytest

from replog.testing import check_transport
from replog.transports.tcp import TcpOptions, TcpTransport


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
async def test_the_exam(address: str) -> None:
    await check_transport(lambda: TcpTransport(TcpOptions()), address)
