// groupmq: the group of a job is the key of its event. For events in bulk, the queue collects adds into batches; each
// is acknowledged with its batch.
import { Queue, Worker } from "groupmq";
import { Redis } from "ioredis";
import { drive, host, port } from "./driver.mjs";

const CONCURRENCY = 64;
const BATCH = 1000;
const redis = new Redis(Number(port), host, { maxRetriesPerRequest: null });
const queue = new Queue({ redis, namespace: "bench" });
const bulk = new Queue({ redis, namespace: "bench", autoBatch: { size: BATCH, maxWaitMs: 1 } });

await drive({
    async enqueue(events) {
        for (let at = 0; at < events.length; at += BATCH) {
            const batch = events.slice(at, at + BATCH);
            await Promise.all(batch.map(({ key, event }) => bulk.add({ groupId: key, data: event })));
        }
    },
    emit: (key, event) => queue.add({ groupId: key, data: event }),
    async work(handle) {
        const handler = async (job) => handle(job.groupId, job.data);
        const worker = new Worker({ queue, concurrency: CONCURRENCY, handler });
        const began = performance.now();
        const failed = worker.run();
        return { began, failed, stop: () => worker.close() };
    },
});
