"""What all tests begin with."""

import signal


def pytest_configure() -> None:
    """Ctrl-C interrupts, also where the shell started the tests in the background and had them ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
