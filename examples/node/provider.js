/** Stands in for the library of a payment provider: it is busy at the first try, and it has a bug. */
import { Redis } from "ioredis";

const redis = new Redis(process.env.REDIS_URL ?? "redis://127.0.0.1");

export class Busy extends Error {}

/** Charges an order, once: the provider knows the order's number. */
export async function charge(order, cents) {
    if (cents > 1_000_000_000) {
        process.abort(); // The bug: a large amount kills the process.
    }
    if ((await redis.hincrby("provider:tries", order, 1)) === 1) {
        throw new Busy("the payment provider is busy");
    }
    await redis.hsetnx("provider:charges", order, cents);
    return null;
}
