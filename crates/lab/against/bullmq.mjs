// BullMQ: the name of a job is the key of its event. One worker; its concurrency is the fourth argument. Only
// concurrency 1 keeps the order of a key.
import { Queue, Worker } from "bullmq";
import { drive, host, port } from "./driver.mjs";

const CHUNK = 1000;
const concurrency = Number(process.argv[5] ?? 1);
const options = { connection: { host, port: Number(port), maxRetriesPerRequest: null } };
const kept = { removeOnComplete: true, removeOnFail: true };
const queue = new Queue("bench", options);

await drive({
    async enqueue(events) {
        const jobs = events.map(({ key, event }) => ({ name: key, data: event, opts: kept }));
        for (let at = 0; at < jobs.length; at += CHUNK) await queue.addBulk(jobs.slice(at, at + CHUNK));
    },
    emit: (key, event) => queue.add(key, event, kept),
    async work(handle) {
        const settings = { ...options, concurrency, autorun: false };
        const worker = new Worker("bench", async (job) => handle(job.name, job.data), settings);
        await worker.waitUntilReady();
        const began = performance.now();
        const failed = worker.run();
        return { began, failed, stop: () => worker.close() };
    },
});
