"""Stands in for the library of a payment provider: it is busy at the first try, and it has a bug."""

import os

import redis

client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1"))


def charge(order, cents):
    """Charges an order, once: the provider knows the order's number."""
    if cents > 1_000_000_000:
        os.abort()  # The bug: a large amount kills the process.
    if client.hincrby("provider:tries", order, 1) == 1:
        raise TimeoutError("the payment provider is busy")
    client.hsetnx("provider:charges", order, cents)
