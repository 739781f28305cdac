"""Tokenizes in this process or in many, and reports progress."""

import array
import collections
import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
import time

from prepare.output import KINDS
from prepare.tokenizer import make_tokenizer
from run_files import Failure

ENDS_WITHIN = 3  # seconds, that processes have after they were ended


class Worker:
    """Turns jobs into tokens; each process has one."""

    def __init__(self, tokenizer, eot, dtype, rule):
        self.tokenizer = make_tokenizer(tokenizer, eot)
        self.code = KINDS[dtype][2]
        self.rule = rule

    def packed(self, tokens):
        """Returns tokens as little-endian bytes of the file's width."""
        width = array.array(self.code).itemsize
        if isinstance(tokens, bytes):
            wide = bytearray(width * len(tokens))
            wide[::width] = tokens
            return wide
        wide = array.array(self.code, tokens)
        if sys.byteorder == "big":
            wide.byteswap()
        return wide.tobytes()

    def work(self, job):
        """Returns the tokens of training and validation, and the counts of documents, empty rows and bytes of text."""
        out, size = [bytearray(), bytearray()], 0
        begin = self.packed([self.tokenizer.eot])
        for document, split, start, end, begins in job.pieces(self.rule):
            where = document.where if start == 0 else f"{document.where}: from byte {start} on"
            if begins:
                out[split] += begin
            out[split] += self.packed(self.tokenizer.encode(document.read(start, end), where))
            size += end - start
        return out, job.documents, job.blank, size


def process_begin(arguments):
    """Prepares a new process: it leaves Ctrl-C to the parent and ends with it."""
    global worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    worker = Worker(*arguments)


def process_work(job):
    return worker.work(job)


def work_all(jobs, arguments, processes):
    """Yields the results of all jobs in order, with the bytes of text of each; a few jobs run at a time."""
    if processes == 1:
        own = Worker(*arguments)
        for done, job in jobs:
            yield done, own.work(job)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), process_begin, (arguments,)
    )
    waiting = collections.deque()
    try:
        for done, job in jobs:
            waiting.append((done, pool.submit(process_work, job)))
            if len(waiting) > 2 * processes:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    except concurrent.futures.process.BrokenProcessPool:
        raise Failure("a process that tokenized has died, perhaps for lack of memory; use a smaller -j") from None
    finally:
        if waiting:  # an error or a stop: what is under way is not wanted any more
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.terminate()
        manager = getattr(pool, "_executor_manager_thread", None)
        pool.shutdown(wait=not waiting, cancel_futures=True)
        if manager is not None and waiting:
            # Now and then it waits for good, to hand a job to a process that has been ended.
            manager.join(ENDS_WITHIN)


def leave(code):
    """Ends the program without waiting for threads that will not end."""
    sys.stdout.flush()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)
    sys.exit(code)


class Progress:
    """A progress line on a terminal; elsewhere, as in a job's log, a line a minute."""

    MINUTE = 60.0

    def __init__(self, size):
        self.size, self.done, self.began = size, 0, time.monotonic()
        self.said = self.began
        self.shown = sys.stderr.isatty()

    def add(self, done):
        self.done += done
        now = time.monotonic()
        if now - self.said < (0.2 if self.shown else self.MINUTE) and not (self.shown and self.done == self.size):
            return
        self.said = now
        part = self.done / self.size
        left = (now - self.began) * (1 - part) / part if part > 0 else 0
        rate = self.done / 1e6 / max(now - self.began, 1e-6)
        minutes, seconds = divmod(round(left), 60)
        line = f"{100 * part:3.0f} %  {rate:.1f} MB/s  {minutes}:{seconds:02d} left"
        bar = ("#" * round(30 * part)).ljust(30, ".")
        sys.stderr.write(f"\r[{bar}] {line}\033[K" if self.shown else f"prepare_data.py: {line}\n")
        sys.stderr.flush()

    def clear(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
