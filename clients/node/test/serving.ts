/** A program that a worker starts. The test is the worker, over the pipes of the program. */
import { type Process, script, until } from "./support.js";

export const HELLO = {
    type: "hello",
    protocol: 1,
    child: 0,
    line_bytes_max: 4 << 20,
    timeout_ms: 60_000,
    cancel_ms: 5000,
    capabilities: ["reports"],
};

export const SERVE = "await worker.serve();";

export function program(t: Parameters<typeof script>[0], handlers: string, hello: object = HELLO): Process {
    const started = script(
        t,
        `const worker = new Worker(undefined, { concurrency: 8 });\n${handlers}\n${SERVE}`,
        { pipes: true },
    );
    started.send(hello);
    return started;
}

export function batch(number: number, object: string, events: unknown[], more: object = {}): object {
    const envelopes = events.map((event, at) => ({ id: number * 100 + at, prev: 0, object, event }));
    return {
        type: "batch",
        batch: number,
        object,
        attempts: 0,
        crashes: 0,
        token: "T",
        events: envelopes,
        ...more,
    };
}

export async function answers(process: Process, count: number): Promise<unknown[]> {
    await until(
        () => process.answers.length > count,
        () => `${count} answers in\n${process.stdout}\n${process.stderr}`,
    );
    return process.answers.slice(1);
}
