"""Programs that are interrupted, by case, for each face: scripts that end with the status 0 unless something else is said.

Each writes into `wal`, and prints `confirmed N` once entries 0 to N - 1 are confirmed; these must be there afterwards.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple


class Program(NamedTuple):
    """A script, its exit status, and what it must write to standard error."""

    script: str
    status: int = 0
    says: str = ""


COMMON = """
import asyncio, gc, logging, os, random, signal, sys, threading, time
import trio
import replog, replog.blocking
from replog import aio

class Interrupted(Exception):
    pass

sent_s = 0.0

def interrupt(*_):
    raise Interrupted

def interrupt_often(rounds, call, error=Interrupted, number=signal.SIGALRM, after_s=0.0):
    # Each round is interrupted at some moment, and must have raised within 0.2 s.
    global sent_s
    main, slow, swallowed, ended = threading.main_thread().ident, [], [], False

    def send(delay_s):
        global sent_s
        time.sleep(delay_s)
        while not ended:
            sent_s = time.monotonic()
            swallowed.clear()
            signal.pthread_kill(main, number)
            while not ended and not swallowed:
                time.sleep(0.001)

    def note_swallowed(lost):
        # Python swallows what is raised in a finalizer or a weakref's callback. If that is not ours, it is pressed again.
        if lost.exc_type is error and not str(getattr(lost.object, "__module__", "")).startswith("replog"):
            swallowed.append(True)
        else:
            sys.__unraisablehook__(lost)

    sys.unraisablehook = note_swallowed
    for _ in range(rounds):
        ended = False
        sender = threading.Thread(target=send, args=(after_s + random.random() * 0.003,))
        try:
            sender.start()
            while True:
                call()
        except error:
            ended = True
            # Most of all when the processor is not only ours.
            took_s = time.monotonic() - sent_s
            slow += [took_s] if took_s > 0.2 else []
        sender.join()
    assert len(slow) <= rounds // 100, slow

def confirmed(number):
    print("confirmed", number, flush=True)
"""

BLOCKING = {
    "finalizer": Program("""
        errors = []

        class Cycle:
            def __init__(self):
                self.me = self

            def __del__(self):
                try:
                    log.append(b"from a finalizer")
                except replog.errors.OwnThreadError as error:
                    errors.append(str(error))

        gc.set_threshold(20, 2, 2)
        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            for number in range(150):
                Cycle()
                log.append(b"%d" % number)
            gc.disable()
            Cycle()
            vars(client)["_way"].call_sync(gc.collect)  # in the trio thread, at last
            confirmed(150)
        assert errors and "queue.SimpleQueue" in errors[0], errors
    """),
    "finalizer that closes": Program("""
        closed = threading.Event()

        class Cycle:
            def __init__(self, client):
                self.me, self.client = self, client

            def __del__(self):
                self.client.close()
                closed.set()

        gc.disable()
        client = replog.blocking.embed("wal").open()
        log = client.write_log("log").open()
        log.append(b"0")
        confirmed(1)
        held = [Cycle(client)]
        def collect():
            held.clear()
            gc.collect()
        vars(client)["_way"].call_sync(collect)
        assert closed.is_set()
        vars(client)["_way"]._thread.join(30)
        with replog.blocking.embed("wal") as again:
            assert again.logs() == ["log"]
    """),
    "logging handler": Program("""
        errors = []

        class Handler(logging.Handler):
            def emit(self, record):
                for verb in (lambda: log.append(b"line"), client.logs, log.statistics, lambda: log.last_add_confirmed,
                             lambda: client.read_log("log").open(), lambda: replog.blocking.embed("other").open(),
                             lambda: reader.receive(), lambda: log.push_nowait(b"line")):
                    try:
                        verb()
                    except replog.errors.OwnThreadError as error:
                        errors.append(error)

        handler = Handler()
        with replog.blocking.embed("wal") as client, client.write_log("log") as log, client.read_log("log") as reader:
            log.append(b"0")
            confirmed(1)
            record = logging.makeLogRecord({"msg": "in replog's thread"})
            way = vars(client)["_way"]
            way.call_sync(handler.emit, record)
            async def in_thread():
                from replog.runtime.threads import run_in_thread
                await run_in_thread(handler.emit, record)
            way.call(in_thread)
            assert len(errors) == 16, errors
            log.append(b"1")
            confirmed(2)
    """),
    "appending handler": Program("""
        class Handler(logging.Handler):
            def emit(self, record):
                handled.append(log.append(record.getMessage().encode()))

        handled, handler = [], Handler()
        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            logging.getLogger().addHandler(handler)
            way, news = vars(client)["_way"], logging.getLogger("replog.client")
            def replog_logs():
                for _ in range(300):
                    way.call_sync(news.warning, "news")
            thread = threading.Thread(target=replog_logs)
            thread.start()
            for number in range(300):
                logging.warning("%d", number)
                confirmed(number + 1)
            thread.join()
            while len(handled) < 600:
                time.sleep(0.01)
            logging.getLogger().removeHandler(handler)
        with replog.blocking.embed("wal") as client, client.read_log("log") as reader:
            assert sum(record.data == b"news" for record in reader) == 300
    """),
    "raising handler": Program("""
        signal.signal(signal.SIGALRM, interrupt)
        done = 0
        def append():
            global done
            log.append(b"x")
            done += 1
        with replog.blocking.embed("wal") as client:
            with client.write_log("log") as log:
                interrupt_often(200, append)
                log.append(b"last")
            with client.read_log("log") as reader:
                assert len(list(reader)) > done
    """),
    "Ctrl-C": Program("""
        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            interrupt_often(200, lambda: log.extend([b"x"] * 3), KeyboardInterrupt, signal.SIGINT)
            log.append(b"last")
    """),
    "raising handler of a reader": Program("""
        signal.signal(signal.SIGALRM, interrupt)
        with replog.blocking.embed("wal") as client:
            with client.write_log("log") as log:
                for number in range(400):
                    log.append(b"%d" % number, key=b"k") if number % 2 else log.extend([b"%d" % number])
            for face in ("iterate", "receive"):
                with client.read_log("log") as reader:
                    found, is_over = [], False
                    while not is_over:
                        try:
                            signal.setitimer(signal.ITIMER_REAL, 0.0002 + random.random() * 0.001)
                            try:
                                if face == "iterate":
                                    for record in reader:
                                        found.append(int(record.data))
                                while True:
                                    found.append(int(reader.receive().data))
                            except replog.errors.EndOfLogError:
                                signal.setitimer(signal.ITIMER_REAL, 0)
                                is_over = True
                        except Interrupted:
                            pass
                # Between what a reader returns and what the program keeps of it, an interruption can always come.
                assert found == sorted(found) and len(found) > 390, (len(found), found)
        confirmed(400)
    """),
    "handler that closes": Program(
        """
        def close(*_):
            log.close()
            client.close()
            sys.exit(7)

        signal.signal(signal.SIGTERM, close)
        client = replog.blocking.embed("wal").open()
        log = client.write_log("log").open()
        log.append(b"0")
        confirmed(1)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            log.append(b"x")
    """,
        status=7,
    ),
    "sys.exit in replog's thread": Program("""
        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            log.append(b"0")
            confirmed(1)
            try:
                vars(client)["_way"].call_sync(sys.exit, 3)
            except SystemExit:
                pass
            log.append(b"1")
            confirmed(2)
    """),
    "fork amid a call": Program("""
        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            log.append(b"0")
            confirmed(1)
            with client.read_log("log", after="1:0", follow=True) as reader:
                def receive():
                    try:
                        reader.receive()
                    except replog.ReplogError:
                        pass
                threading.Thread(target=receive).start()
                time.sleep(0.1)
                pid = os.fork()
                if not pid:
                    try:
                        log.append(b"child")
                    except replog.errors.ForkedError:
                        os._exit(5)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
                log.append(b"1")
                confirmed(2)
    """),
    "shutdown while a thread appends": Program("""
        client = replog.blocking.embed("wal").open()
        log = client.write_log("log").open()
        log.append(b"0")
        confirmed(1)

        def append():
            try:
                while True:
                    log.append(b"x")
            except replog.ReplogError:
                pass

        threading.Thread(target=append).start()
        time.sleep(0.1)
    """),
    "shutdown while a daemon appends": Program("""
        def append():
            with replog.blocking.embed("wal") as client, client.write_log("log") as log:
                log.append(b"0")
                confirmed(1)
                ready.set()
                while True:
                    log.append(b"x")

        ready = threading.Event()
        threading.Thread(target=append, daemon=True).start()
        ready.wait()
    """),
    "trio's threads": Program("""
        async def main():
            for number in range(20):
                await trio.to_thread.run_sync(log.append, b"%d" % number)
        with replog.blocking.embed("wal") as client, client.write_log("log") as log:
            trio.run(main)
            confirmed(20)
    """),
    "exit handler": Program("""
        import atexit
        @atexit.register
        def late():
            try:
                log.append(b"late")
            except replog.ClosedError:
                confirmed(1)
        client = replog.blocking.embed("wal").open()
        log = client.write_log("log").open()
        log.append(b"0")
    """),
}

# `new_loop` is the event loop's: asyncio's own or uvloop's. `run` is as `asyncio.run`.
AIO = {
    "Ctrl-C in a bare loop": Program("""
        loop = new_loop()
        asyncio.set_event_loop(loop)
        async def start():
            client = await aio.embed("wal").open()
            log = await client.write_log("log").open()
            await log.append(b"0")
            return client, log
        client, log = loop.run_until_complete(start())
        confirmed(1)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            loop.run_until_complete(asyncio.sleep(30))
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("it was not interrupted")
        loop.run_until_complete(log.append(b"1"))
        confirmed(2)

        async def append_often():
            while True:
                await asyncio.gather(*(log.append(b"x") for _ in range(3)), client.logs())

        def end_tasks():
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks)) if tasks else None

        def append_for_a_while():
            end_tasks()
            loop.run_until_complete(append_often())

        # uvloop itself is not safe while it begins to run.
        interrupt_often(30, append_for_a_while, KeyboardInterrupt, signal.SIGINT, after_s=0.03)
        end_tasks()
        loop.run_until_complete(log.append(b"last"))

        async def end():
            await log.aclose()
            await client.aclose()
        loop.run_until_complete(end())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        loop.close()
    """),
    "Ctrl-C in asyncio.run": Program("""
        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:
                    await log.append(b"x")
        try:
            run(main())
        except KeyboardInterrupt:
            trio.run(trio.sleep, 0)
        else:
            raise AssertionError("it was not interrupted")
    """),
    "reader left open": Program(
        """
        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                reader = await client.read_log("log", follow=True).__aenter__()
                await reader.receive()
        run(main())
        trio.run(trio.sleep, 0)
        async def again():
            async with aio.embed("wal") as client:
                assert await client.logs() == ["log"]
        run(again())
    """,
        says="ResourceWarning: replog.aio",
    ),
    "loop closed under a client": Program(
        """
        loop = new_loop()
        async def main():
            global log, task
            client = await aio.embed("wal").__aenter__()
            log = await client.write_log("log").open()
            await log.append(b"0")
            task = asyncio.ensure_future(client.read_log("log", follow=True).__aenter__())
            for _ in range(20):
                await log.push(b"x")
            asyncio.ensure_future(log.append(b"y"))
        loop.run_until_complete(main())
        confirmed(1)
        loop.close()
        trio.run(trio.sleep, 0)
        async def again():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"again")
            try:
                await stale.append(b"x")
            except replog.ReplogError:
                pass
        stale = log
        run(again())
        with replog.blocking.embed("wal") as client:
            client.logs()
    """,
        says="ResourceWarning: replog.aio",
    ),
    "loop never closed": Program(
        """
        loop = new_loop()
        async def main():
            global log
            client = await aio.embed("wal").__aenter__()
            log = await client.write_log("log").open()
            await log.append(b"0")
        loop.run_until_complete(main())
        confirmed(1)
    """,
        says="ResourceWarning: replog.aio",
    ),
    "all tasks cancelled": Program("""
        async def append(log):
            while True:
                await log.append(b"x")
        async def main():
            client = await aio.embed("wal").open()
            log = await client.write_log("log").open()
            await log.append(b"0")
            confirmed(1)
            for _ in range(20):
                tasks = [asyncio.ensure_future(append(log)) for _ in range(3)] + [
                    asyncio.ensure_future(client.read_log("log", follow=True).open()),
                    asyncio.ensure_future(client.log_summary("log")),
                ]
                await asyncio.sleep(random.random() * 0.01)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await log.append(b"y")
        run(main())
        trio.run(trio.sleep, 0)
    """),
    "sys.exit in a callback": Program(
        """
        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                asyncio.get_running_loop().call_later(0.1, sys.exit, 3)
                while True:
                    await log.append(b"x")
        run(main())
    """,
        status=3,
    ),
    "sys.exit in replog's turn": Program(
        """
        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                vars(client)["_way"].call_soon.soon(lambda: sys.exit(3))
                while True:
                    await log.append(b"x")
        run(main())
    """,
        status=3,
        says="SystemExit",
    ),
    "sys.exit in a callback of a bare loop": Program(
        """
        loop = new_loop()
        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                asyncio.get_running_loop().call_later(0.1, sys.exit, 3)
                while True:
                    await log.append(b"x")
        loop.run_until_complete(main())
    """,
        status=3,
        says="ResourceWarning: replog.aio",
    ),
    "fork amid a call": Program("""
        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                waiting = asyncio.ensure_future(log.append(b"1"))
                await asyncio.sleep(0)
                pid = os.fork()
                if not pid:
                    try:
                        log.push_nowait(b"child")
                    except replog.errors.ForkedError:
                        os._exit(5)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
                await waiting
                confirmed(2)
        run(main())
    """),
    "shutdown while a daemon appends": Program(
        """
        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                ready.set()
                while True:
                    await log.append(b"x")
        ready = threading.Event()
        threading.Thread(target=run, args=(main(),), daemon=True).start()
        ready.wait()
    """,
        says="ResourceWarning: replog.aio",
    ),
    "loop of a thread that ended": Program(
        """
        def serve():
            loop = new_loop()
            async def main():
                client = await aio.embed("wal").open()
                log = await client.write_log("log").open()
                await log.append(b"0")
            loop.run_until_complete(main())
            confirmed(1)
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
    """,
        says="ResourceWarning: replog.aio",
    ),
}

TRIO = {
    "Ctrl-C": Program("""
        async def main():
            async with replog.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:
                    await log.append(b"x")
        try:
            trio.run(main)
        except BaseException as error:
            assert isinstance(error, KeyboardInterrupt) or error.split(KeyboardInterrupt)[1] is None, error
        trio.run(trio.sleep, 0)
    """),
    "sys.exit in a task": Program(
        """
        async def main():
            async with replog.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                sys.exit(3)
        trio.run(main)
    """,
        status=3,
    ),
    "all tasks cancelled": Program("""
        async def append(log):
            while True:
                await log.append(b"x")
        async def main():
            async with replog.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                for _ in range(20):
                    async with trio.open_nursery() as nursery:
                        for _ in range(3):
                            nursery.start_soon(append, log)
                        await trio.sleep(random.random() * 0.01)
                        nursery.cancel_scope.cancel()
                    await log.append(b"y")
        trio.run(main)
    """),
    "shutdown while a daemon appends": Program("""
        async def main():
            async with replog.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"0")
                confirmed(1)
                ready.set()
                while True:
                    await log.append(b"x")
        ready = threading.Event()
        threading.Thread(target=trio.run, args=(main,), daemon=True).start()
        ready.wait()
    """),
}

LOOPS = {
    "aio": "new_loop = asyncio.new_event_loop\n",
    "uvloop": "import uvloop\nnew_loop = uvloop.new_event_loop\n",
}
RUN = """
def run(coroutine):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(coroutine)
"""
FACES = {"blocking": BLOCKING, "aio": AIO, "uvloop": AIO, "trio": TRIO}


def whole_script(face: str, case: str) -> str:
    """The program of this case, as Python runs it."""
    program = textwrap.dedent(FACES[face][case].script)
    return COMMON + (LOOPS[face] + RUN if face in LOOPS else "") + program
