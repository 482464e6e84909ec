// The part that the programs of all Node tools share: the workload, the commands, and the notes of handlers.
//
// The bench runs `node TOOL.mjs URL KEYS BYTES`. The file KEYS has the key of each event, a line each. Commands
// come on standard input, a line each; the reply is a line on standard output:
//     enqueue N            emits the first N events in bulk; replies with the time in ms
//     drain N FILE MS      handles N events; each handler takes 0 to MS ms
//     latency N FILE RATE  handles N events that are emitted one by one; replies with the times of the emits
// FILE gets the notes: `=MS` when the worker is ready, `+NUMBER KEY MS` when a handler begins, and `-NUMBER` when a
// handler that takes time ends.
import { readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

export const [, , url, keysFile, bytes] = process.argv;
const keys = readFileSync(keysFile, "utf8").trimEnd().split("\n");
export const { hostname: host, port } = new URL(url);

// An event is JSON of exactly BYTES bytes, without its key.
function eventOf(number) {
    return { seq: number, text: "x".repeat(Number(bytes) - 18 - String(number).length) };
}

function events(count) {
    return Array.from({ length: count }, (_, number) => ({ key: keys[number], event: eventOf(number) }));
}

class Notes {
    lines = [];
    count = 0;

    constructor(wanted, ms) {
        this.all = new Promise((resolve) => {
            this.took = () => ++this.count >= wanted && resolve();
        });
        this.handle = ms === 0 ? this.note : this.noteSlowly;
        this.ms = ms;
    }

    note = (key, event) => {
        this.lines.push(`+${event.seq} ${key} ${performance.now()}`);
        this.took();
    };

    noteSlowly = async (key, event) => {
        this.lines.push(`+${event.seq} ${key} ${performance.now()}`);
        await sleep(Math.random() * this.ms);
        this.lines.push(`-${event.seq}`);
        this.took();
    };
}

// Handles `wanted` events, while `emit` runs.
async function handled(tool, wanted, file, ms, emit) {
    const notes = new Notes(wanted, ms);
    const worker = await tool.work(notes.handle);
    const reply = await emit();
    await Promise.race([notes.all, worker.failed]);
    await worker.stop();
    writeFileSync(file, `=${worker.began}\n${notes.lines.join("\n")}\n`);
    return reply;
}

const commands = {
    enqueue: async (tool, count) => {
        const all = events(count);
        const began = performance.now();
        await tool.enqueue(all);
        return performance.now() - began;
    },
    drain: (tool, count, file, ms) => handled(tool, count, file, Number(ms), () => null),
    latency: (tool, count, file, rate) =>
        handled(tool, count, file, 0, async () => {
            const [all, times, emits] = [events(count), [], []];
            const began = performance.now();
            for (const [number, { key, event }] of all.entries()) {
                const due = began + (number * 1000) / rate;
                while (performance.now() < due) await sleep(due - performance.now());
                times.push(performance.now());
                emits.push(tool.emit(key, event));
            }
            await Promise.all(emits);
            return times;
        }),
};

export async function drive(tool) {
    for await (const line of createInterface({ input: process.stdin })) {
        const [command, count, ...rest] = line.split(" ");
        const reply = await commands[command](tool, Number(count), ...rest);
        process.stdout.write(`${JSON.stringify(reply)}\n`);
    }
    process.exit(0);
}
