"""A bookie of replog's that clients of BookKeeper use: `serve_bookie`."""

from replog_bookkeeper.serving.bookie import BookKeeperBookie, serve_bookie

__all__ = ["BookKeeperBookie", "serve_bookie"]
