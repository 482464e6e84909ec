"""Handles the events of customers: seriatim worker --name orders-a --sink 'exec:python3 worker.py'"""

import json
import os

import redis
from provider import charge

from seriatim import Transient, Worker

client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1"), decode_responses=True)
worker = Worker()


@worker.on("ordered", "paid", "remind")
def handle(event, cx):
    number = event["order"]
    order, reminder = json.loads(client.get(f"order:{number}")), f"remind {number}"
    if cx.type == "ordered":
        cx.schedule(cx.object, {"type": "remind", "order": number}, after=order["remind_after"], key=reminder)
    if cx.type == "paid":
        try:
            cx.once("charge", lambda: charge(number, order["cents"]))
        except TimeoutError as error:
            raise Transient(str(error), retry_after=0.2) from error
        cx.cancel(cx.object, reminder)
    # No lock between reading and writing: no other handler of this customer runs. The id tells a repeated event.
    account, change = client.hgetall(f"account:{cx.object}"), {"ordered": 1, "paid": -1, "remind": 0}[cx.type]
    if int(account.get("event", 0)) < cx.id:
        owed = int(account.get("owed", 0)) + change * order["cents"]
        client.hset(f"account:{cx.object}", mapping={"owed": owed, "event": cx.id})
    cx.emit(f"mail:{order['customer']}", {"type": "mail", "about": cx.type, "order": number})


@worker.on("mail")
def send(event, cx):
    print(cx.object, event["about"], event["order"])


worker.serve()
