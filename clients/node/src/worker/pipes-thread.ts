/**
 * The thread that has the pipes to the worker. It notices the death of the worker even while a handler blocks the
 * main thread. If events are in hand then, and the main thread does not take note, it kills the process: another
 * worker may send these events at any moment.
 */
import { spawn } from "node:child_process";
import { Socket } from "node:net";
import { parentPort, workerData } from "node:worker_threads";
import type { FromThread, PipesData, ToThread } from "./pipes.js";

/** The time in ms within which the main thread must take note of the worker's death. */
const NOTE_MS = 1000;

/** The time in ms from the end of a worker's output to its end. */
const ENDS_WITHIN_MS = 10_000;
/** The time in ms within which a worker must stop at once. */
const STOPS_WITHIN_MS = 2000;

const { start, shared } = workerData as PipesData;
const inHand = new Int32Array(shared);
const port = parentPort;

function tell(message: FromThread, transfer: ArrayBuffer[] = []): void {
    port?.postMessage(message, transfer);
}

function chunk(bytes: Buffer): void {
    const copy = new Uint8Array(bytes);
    tell({ type: "chunk", bytes: copy }, [copy.buffer]);
}

let isOver = false;
let noted: NodeJS.Timeout | undefined;

/** The worker writes no more. */
function over(): void {
    if (isOver) {
        return;
    }
    isOver = true;
    tell({ type: "end" });
    noted = setTimeout(() => {
        if (Atomics.load(inHand, 0) > 0) {
            process.kill(process.pid, "SIGKILL");
        }
    }, NOTE_MS);
}

interface Pipe {
    write(text: string | Uint8Array, done?: () => void): void;
    /** Stops the worker at once, if this process has started it. */
    stop(): void;
    /** Ends the input of the worker, behind everything that was written. */
    end(done: () => void): void;
}

/** Starts the worker, and has its standard input and output. */
function child(program: string, args: readonly string[], env: NodeJS.ProcessEnv): Pipe {
    // In a process group of its own, so that a Ctrl-C on the terminal reaches only this process.
    const started = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"], env, detached: true });
    started.stdin.on("error", () => undefined);
    started.stdout.on("error", () => undefined);
    started.stdout.on("data", chunk);
    started.stdout.on("end", () => {
        over();
        // A worker that writes no more ends soon.
        setTimeout(() => started.kill("SIGKILL"), ENDS_WITHIN_MS).unref();
    });
    started.on("error", (error) => {
        tell({ type: "failed", error: error.message });
        over();
    });
    started.on("exit", (code, signal) => tell({ type: "exit", code, signal }));
    return {
        write: (text, done) => started.stdin.write(text, done),
        stop: () => {
            // The second signal stops a worker at once. It gives its objects to other workers.
            started.kill("SIGTERM");
            started.kill("SIGINT");
            setTimeout(() => started.kill("SIGKILL"), STOPS_WITHIN_MS).unref();
        },
        end: (done) => started.stdin.end(done),
    };
}

/** Has the pipes of a worker that has started this process. */
function parent(input: number, output: number): Pipe {
    const reader = new Socket({ fd: input, readable: true, writable: false });
    reader.on("data", chunk);
    reader.on("end", over);
    reader.on("error", over);
    const writer = new Socket({ fd: output, readable: false, writable: true });
    // If nobody reads, the worker is dead, and the input has ended, too.
    writer.on("error", () => undefined);
    return {
        write: (text, done) => writer.write(text, done),
        stop: () => undefined,
        end: (done) => writer.end(done),
    };
}

const pipe =
    start.type === "child" ? child(start.program, start.args, start.env) : parent(start.input, start.output);

port?.on("message", (message: ToThread) => {
    switch (message.type) {
        case "write":
            pipe.write(message.text, message.tells ? () => tell({ type: "written" }) : undefined);
            break;
        case "end":
            pipe.end(() => tell({ type: "ended" }));
            break;
        case "stop":
            pipe.stop();
            break;
        case "noted":
            clearTimeout(noted);
            break;
    }
});
