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
LINES = queue.Queue()


def handle(name, event, cx):
    """Does the work for an event of this object. A ValueError rejects the event. After any other
    exception the event comes again later. May return the event's effects, e.g.
    {"emit": [{"object": "ledger:1", "event": {"type": "paid"}}], "result": {"receipt": 7}}."""
    print(f"{name}: {event}", flush=True)


def once(cx, name, step):
    """Does a step of the event once, also if the event comes again. Returns the value of the step."""
    if name not in cx["once"]:
        value = step()
        say(type="once", batch=cx["batch"], id=cx["id"], name=name, value=value)
        reply = next(line for line in iter(LINES.get, None) if line["type"] == "once")
        if "error" in reply:
            raise RuntimeError(reply["error"])
        cx["once"][name] = value
    return cx["once"][name]


def say(**line):
    print(json.dumps(line), file=OUTPUT, flush=True)


def read():
    try:
        for text in INPUT:
            LINES.put(json.loads(text))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # The worker is dead or stops. Another worker may send the event in hand at any moment.
    os._exit(0)


def answer(work, line, event):
    """Returns whether the next event of the batch may begin."""
    this = {"batch": line["batch"], "id": event["id"]}
    # What is done already is that of the first event.
    done = line.pop("once", {})
    try:
        effects = work(event["object"], event["event"], {"once": done, **this}) or {}
    except Exception as error:
        kind = "rejected" if isinstance(error, ValueError) else "transient"
        text = repr(error)[:1000].encode(errors="replace").decode()
        say(type=kind, error=text, **this)
        return False
    say(type="ok", **effects, **this)
    # An event with effects ends its batch.
    return not effects


def run(work):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The worker closes the input instead.
    say(type="hello", protocol=1, client="handlers.py")
    threading.Thread(target=read, daemon=True).start()
    while True:
        line = LINES.get()
        # This program has one batch at a time and cannot interrupt it, so it ignores `cancel`.
        if line["type"] == "batch":
            all(answer(work, line, event) for event in line["events"])


if __name__ == "__main__":
    run(handle)
