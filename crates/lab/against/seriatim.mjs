// seriatim with handlers in Node. The package starts the program that SERIATIM_BIN names.
import { Redis } from "ioredis";
import { Emitter, Worker } from "seriatim";
import { drive, host, port, url } from "./driver.mjs";

const NAME = "bench";
const emitter = new Emitter(url);
const redis = new Redis(Number(port), host);

await drive({
    enqueue: (events) => emitter.emitMany(events.map(({ key, event }) => [key, event])),
    emit: (key, event) => emitter.emit(key, event),
    async work(handle) {
        const worker = new Worker(url, { name: NAME });
        worker.onOther((event, cx) => handle(cx.object, event));
        const failed = worker.run();
        while ((await redis.exists(`event.worker:${NAME}:lease`)) === 0);
        const stop = async () => {
            worker.stop();
            await failed;
        };
        return { began: performance.now(), failed, stop };
    },
});
