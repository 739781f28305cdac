"""A second, unprivileged user of the machine."""

import contextlib
import json
import os
import traceback

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user: root")


class OtherUser:
    """A process of that user. It runs `act`, then keeps the open files and locks of `act` until the end."""

    def __init__(self, act):
        self.read, answer = os.pipe()
        ours, self.go_on = os.pipe()
        self.pid = os.fork()  # fork only: other users may not be able to read root's Python
        if self.pid == 0:
            try:
                os.close(self.go_on)
                os.setsid()  # SIGCONT may be sent within a session
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                held = act()  # noqa: F841
                os.write(answer, json.dumps(held if isinstance(held, (list, dict)) else None, default=str).encode())
                os.close(answer)
                os.read(ours, 1)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(answer), os.close(ours)

    def __enter__(self):
        with os.fdopen(self.read) as file:
            self.answer = file.read()
        assert self.answer, "the other user failed"
        self.answer = json.loads(self.answer)
        return self

    def __exit__(self, *_):
        os.close(self.go_on)
        os.waitpid(self.pid, 0)


def let_in(folder):
    """Lets other users pass to a test's folder, as in the usual home or scratch folder; umask decides the rest."""
    for path in [folder, *folder.parents]:
        with contextlib.suppress(PermissionError):
            path.chmod(path.stat().st_mode | 0o055)
