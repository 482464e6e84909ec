/** Handles the events of customers: seriatim worker --name orders-a --sink 'exec:node worker.js' */
import { Redis } from "ioredis";
import { Transient, Worker } from "seriatim";
import { Busy, charge } from "./provider.js";

const redis = new Redis(process.env.REDIS_URL ?? "redis://127.0.0.1");
const worker = new Worker();
const changes = { ordered: 1, paid: -1, remind: 0 };

for (const type of Object.keys(changes)) {
    worker.on(type, async ({ order: number }, cx) => {
        const [order, reminder] = [JSON.parse(await redis.get(`order:${number}`)), `remind ${number}`];
        if (type === "ordered") {
            const remind = { type: "remind", order: number };
            cx.schedule(cx.object, remind, { after: order.remindAfter, key: reminder });
        }
        if (type === "paid") {
            await cx
                .once("charge", () => charge(number, order.cents))
                .catch((error) => {
                    throw error instanceof Busy ? new Transient(error.message, { retryAfter: 200 }) : error;
                });
            cx.cancel(cx.object, reminder);
        }
        // No lock between reading and writing: no other handler of this customer runs. The id tells a repeated event.
        const account = await redis.hgetall(`account:${cx.object}`);
        if (Number(account.event ?? 0) < cx.id) {
            const owed = Number(account.owed ?? 0) + changes[type] * order.cents;
            await redis.hset(`account:${cx.object}`, { owed, event: cx.id });
        }
        cx.emit(`mail:${order.customer}`, { type: "mail", about: type, order: number });
    });
}

worker.on("mail", (event, cx) => console.log(cx.object, event.about, event.order));
await worker.serve();
