"""Following the tail of a log (L6, D1)."""

from pathlib import Path

import trio

import replog


async def test_news_that_this_client_knows_already_are_not_waited_for(tmp_path: Path) -> None:
    # Nobody but this client's own writer knows of the second record: bookies would tell of it after 60 s.
    options = replog.ClientOptions(follow_wait_s=60.0, explicit_last_add_confirmed_after_s=60.0)
    with trio.fail_after(20):
        async with (
            replog.embed(tmp_path, options=options) as client,
            client.write_log("log") as log,
            client.read_log("log", follow=True) as reader,
        ):
            for data in (b"one", b"two", b"three"):
                await log.append(data)
                assert (await reader.receive()).data == data
