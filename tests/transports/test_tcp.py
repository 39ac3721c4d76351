"""The TCP transport passes its conformance suite."""

import pytest

from replog.testing import check_transport
from replog.transports.tcp import TcpOptions, TcpTransport


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
async def test_the_conformance_suite(address: str) -> None:
    await check_transport(lambda: TcpTransport(TcpOptions()), address)
