"""Tokenizes in this process or in several processes, and reports progress."""

import array
import collections
import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import queue
import signal
import sys
import threading
import time

from prepare.output import KINDS
from prepare.tokenizer import make_tokenizer
from run_files import Failure


class Worker:
    """Turns jobs into tokens; each process has one."""

    def __init__(self, tokenizer, eot, dtype, rule):
        self.tokenizer = make_tokenizer(tokenizer, eot)
        self.code = KINDS[dtype][2]
        self.rule = rule

    def encode(self, document, start, end):
        """Returns the tokens of a piece as they are in the document."""
        where = document.where if start == 0 else f"{document.where}: from byte {start} on"
        data = document.read(start, end)
        return self.tokenizer.encode(data, where) if start == 0 else self.tokenizer.inside(data, where)

    def packed(self, tokens):
        """Returns tokens as bytes of the file's width."""
        width = array.array(self.code).itemsize
        if isinstance(tokens, bytes):
            wide = bytearray(width * len(tokens))
            wide[::width] = tokens
            return wide
        return array.array(self.code, tokens).tobytes()

    def work(self, job):
        """Returns (whether a document begins here, split, tokens) of each piece, and the counts of empty rows and bytes
        of text."""
        out, size = [], 0
        begin = self.packed([self.tokenizer.eot])
        for document, split, start, end, begins in job.pieces(self.rule):
            out.append((start == 0, split, begin * begins + self.packed(self.encode(document, start, end))))
            size += end - start
        return out, job.blank, size


def process_main(pipe, arguments):
    """Tokenizes the jobs received through `pipe`; ends with the parent. A thread receives ahead, so that the parent is
    never blocked while sending a job, even if this process is blocked while sending tokens."""
    jobs = queue.SimpleQueue()

    def read():
        with contextlib.suppress(EOFError, OSError):
            while True:
                jobs.put(pipe.recv())
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    worker = Worker(*arguments)
    while True:
        try:
            result = worker.work(jobs.get())
        except Exception as error:  # raised again in the parent
            result = error
        with contextlib.suppress(BrokenPipeError):
            pipe.send(result)


class Process:
    """One process that tokenizes."""

    def __init__(self, arguments):
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=process_main, args=(end, arguments), daemon=True)
        self.process.start()
        end.close()

    def result(self):
        """Returns the result of its oldest job."""
        result = self.pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result


@contextlib.contextmanager
def signals_later():
    """Blocks the signals of a terminal and of a scheduler. A process that starts meanwhile never receives them."""
    multiprocessing.resource_tracker.ensure_running()  # the first process would start it, and unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work_all(jobs, arguments, processes):
    """Yields the results of all jobs in order, with each job's bytes of text; a few jobs are in progress at a time."""
    if processes == 1:
        own = Worker(*arguments)
        for done, job in jobs:
            yield done, own.work(job)
        return
    pool, waiting = [], collections.deque()
    try:
        for index, (done, job) in enumerate(jobs):
            if index < processes:
                with signals_later():
                    pool.append(Process(arguments))
            process = pool[index % processes]
            process.pipe.send(job)
            waiting.append((done, process))
            if len(waiting) > 2 * processes:
                done, process = waiting.popleft()
                yield done, process.result()
        while waiting:
            done, process = waiting.popleft()
            yield done, process.result()
    except (EOFError, ConnectionError):
        raise Failure("a process that tokenized has died, perhaps for lack of memory; use a smaller -j") from None
    finally:
        for process in pool:
            process.process.kill()
        for process in pool:
            process.process.join()


class Progress:
    """A progress line on a terminal; elsewhere, as in a job's log, one line per minute."""

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
