"""Takes orders and payments over HTTP: uvicorn service:app"""

import json
import os
import uuid

import redis.asyncio as redis
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from seriatim import AsyncEmitter

# Without retries: after a lost reply they would send a whole transaction again.
client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1"), retry=Retry(NoBackoff(), 0))
em = AsyncEmitter(client)
app = FastAPI()


class Order(BaseModel):
    cents: int
    remind_after: float = 24 * 60 * 60


@app.post("/orders/{customer}", status_code=201)
async def place(customer: str, order: Order):
    number = uuid.uuid4().hex
    async with client.pipeline(transaction=True) as pipe:
        pipe.set(f"order:{number}", json.dumps({"customer": customer, **order.model_dump()}))
        ordered = em.append_to(pipe, f"customer:{customer}", {"type": "ordered", "order": number})
        ordered.outcome(await pipe.execute(raise_on_error=False))
    return {"order": number}


@app.post("/orders/{customer}/{number}/payment", status_code=202)
async def pay(customer: str, number: str):
    if not await client.exists(f"order:{number}"):
        raise HTTPException(404, f"there is no order {number}")
    await em.emit(f"customer:{customer}", {"type": "paid", "order": number}, idempotency_key=f"payment {number}")
