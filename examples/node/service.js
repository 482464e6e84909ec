/** Takes orders and payments over HTTP: node service.js */
import { randomUUID } from "node:crypto";
import Fastify from "fastify";
import { Redis } from "ioredis";
import { Emitter } from "seriatim";

// Without this option, ioredis would send a whole transaction again after a lost connection.
const options = { autoResendUnfulfilledCommands: false };
const redis = new Redis(process.env.REDIS_URL ?? "redis://127.0.0.1", options);
const em = new Emitter(redis);
const app = Fastify();

const day = 24 * 60 * 60 * 1000;
const properties = { cents: { type: "integer" }, remindAfter: { type: "number", default: day } };
const body = { type: "object", required: ["cents"], properties };

app.post("/orders/:customer", { schema: { body } }, async (request, reply) => {
    const [number, { customer }] = [randomUUID(), request.params];
    const multi = redis.multi().set(`order:${number}`, JSON.stringify({ customer, ...request.body }));
    const ordered = em.appendTo(multi, `customer:${customer}`, { type: "ordered", order: number });
    const replies = await multi.exec().catch((error) => {
        throw ordered.failure(error);
    });
    ordered.outcome(replies);
    return reply.code(201).send({ order: number });
});

app.post("/orders/:customer/:number/payment", async (request, reply) => {
    const { customer, number } = request.params;
    if (!(await redis.exists(`order:${number}`))) {
        return reply.code(404).send({ error: `there is no order ${number}` });
    }
    const paid = { type: "paid", order: number };
    await em.emit(`customer:${customer}`, paid, { idempotencyKey: `payment ${number}` });
    return reply.code(202).send({});
});

console.log(await app.listen({ port: Number(process.env.PORT ?? 3000) }));
