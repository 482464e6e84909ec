"""Handlers in Python, without a package (docs/handlers-protocol.md):

    seriatim worker --sink 'exec:python3 examples/handlers.py'
"""

import json
import os
import queue
import signal
import sys
import threading
import traceback

# Only this program may use the pipes to the worker. A print(), and a program that a handler starts, write
# to the log of the worker instead.
INPUT, OUTPUT = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)


def handle(name, event):
    """Does the work for an event of this object. A ValueError rejects the event. After any other
    exception the event comes again later."""
    print(f"{name}: {event}", flush=True)


def say(**line):
    print(json.dumps(line), file=OUTPUT, flush=True)


def read(lines):
    try:
        for text in INPUT:
            lines.put(json.loads(text))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # The worker is dead or stops. Another worker may send the event in hand at any moment.
    os._exit(0)


def answer(work, batch, event):
    """Returns whether the next event of the batch may begin."""
    this = {"batch": batch, "id": event["id"]}
    try:
        work(event["object"], event["event"])
    except Exception as error:
        kind = "rejected" if isinstance(error, ValueError) else "transient"
        text = repr(error)[:1000].encode(errors="replace").decode()
        say(type=kind, error=text, **this)
        return False
    say(type="ok", **this)
    return True


def run(work):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The worker closes the input instead.
    say(type="hello", protocol=1, client="handlers.py")
    lines = queue.Queue()
    threading.Thread(target=read, args=[lines], daemon=True).start()
    while True:
        line = lines.get()
        # This program has one batch at a time and cannot interrupt it, so it ignores `cancel`.
        if line["type"] == "batch":
            all(answer(work, line["batch"], event) for event in line["events"])


if __name__ == "__main__":
    run(handle)
