/**
 * The pipes to a worker, which a thread of their own has. If a worker has started this process, the main thread
 * writes as much as the pipe takes, and the other thread writes the rest.
 */
import { once } from "node:events";
import { closeSync, writeSync } from "node:fs";
import { Worker as Thread } from "node:worker_threads";

/** The start of a worker. */
export interface ChildStart {
    readonly type: "child";
    readonly program: string;
    readonly args: readonly string[];
    readonly env: NodeJS.ProcessEnv;
}

/** What the thread is to do: start a worker, or use the pipes of the worker that has started this process. */
export type PipesStart =
    | ChildStart
    | {
          readonly type: "parent";
          readonly input: number;
          readonly output: number;
          /** The same pipe as `output`, for this thread. */
          readonly direct: number;
      };

/** @internal */
export interface PipesData {
    readonly start: PipesStart;
    readonly shared: SharedArrayBuffer;
}

/** @internal */
export type FromThread =
    | { readonly type: "chunk"; readonly bytes: Uint8Array }
    | { readonly type: "end" }
    | { readonly type: "ended" }
    | { readonly type: "written" }
    | { readonly type: "failed"; readonly error: string }
    | { readonly type: "exit"; readonly code: number | null; readonly signal: string | null };

/** @internal */
export type ToThread =
    | { readonly type: "write"; readonly text: string | Uint8Array; readonly tells: boolean }
    | { readonly type: "end" }
    | { readonly type: "stop" }
    | { readonly type: "noted" };

/** The receiver of the worker's lines. */
export interface PipesReader {
    chunk(bytes: Uint8Array): void;
    /** The worker writes no more. */
    end(): void;
}

/** The end of a worker that this process has started. */
export interface Exit {
    readonly code: number | null;
    readonly signal: string | null;
    /** The error, if it could not be started. */
    readonly failed: string | undefined;
}

export class Pipes {
    private readonly thread: Thread;
    private readonly inHand: Int32Array;
    /** Resolves when the worker that was started has ended. */
    readonly exit: Promise<Exit>;
    /** The output, if this thread may write to it. It saves the way by the other thread. */
    private direct: number | undefined;
    /** The calls for the texts that the thread is writing, in their order. */
    private readonly writing: ((() => void) | undefined)[] = [];

    constructor(start: PipesStart, reader: PipesReader) {
        this.direct = start.type === "parent" ? start.direct : undefined;
        const shared = new SharedArrayBuffer(4);
        this.inHand = new Int32Array(shared);
        const data: PipesData = { start, shared };
        this.thread = new Thread(new URL("./pipes-thread.js", import.meta.url), {
            workerData: data,
            execArgv: [],
        });
        let failed: string | undefined;
        this.exit = new Promise((resolve) => {
            this.thread.on("message", (message: FromThread) => {
                switch (message.type) {
                    case "chunk":
                        reader.chunk(message.bytes);
                        break;
                    case "end":
                        this.send({ type: "noted" });
                        reader.end();
                        if (failed !== undefined) {
                            resolve({ code: null, signal: null, failed });
                        }
                        break;
                    case "written":
                        this.writing.shift()?.();
                        break;
                    case "failed":
                        failed = message.error;
                        break;
                    case "exit":
                        resolve({ code: message.code, signal: message.signal, failed: undefined });
                        break;
                }
            });
            this.thread.on("error", (error: Error) => {
                failed = `the thread of the pipes has failed: ${error.message}`;
                reader.end();
                resolve({ code: null, signal: null, failed });
            });
        });
    }

    /** Writes a text, and then calls `written`. */
    write(text: string, written?: () => void): void {
        const rest =
            this.direct === undefined || this.writing.length > 0 ? text : writeNow(this.direct, text);
        if (rest.length === 0) {
            written?.();
            return;
        }
        // This thread may write again when the other one has written all that came before.
        const tells = written !== undefined || this.direct !== undefined;
        if (tells) {
            this.writing.push(written);
        }
        this.send({ type: "write", text: rest, tells });
    }

    /** Stops the worker at once, if this process has started it. */
    stop(): void {
        this.send({ type: "stop" });
    }

    /** Ends the input of the worker, and waits until everything is written, or the worker reads no more. */
    async finish(withinMs: number): Promise<void> {
        if (this.direct !== undefined) {
            closeSync(this.direct);
            this.direct = undefined;
        }
        this.send({ type: "end" });
        const ended = (async () => {
            for (;;) {
                const [message] = (await once(this.thread, "message")) as [FromThread];
                if (message.type === "ended") {
                    return;
                }
            }
        })();
        let timer: NodeJS.Timeout | undefined;
        const late = new Promise((resolve) => {
            timer = setTimeout(resolve, withinMs);
        });
        await Promise.race([ended, late]).finally(() => clearTimeout(timer));
    }

    /** Tells the thread how many batches are in hand. */
    setInHand(batches: number): void {
        Atomics.store(this.inHand, 0, batches);
    }

    /** Ends the thread. */
    async close(): Promise<void> {
        await this.thread.terminate();
    }

    private send(message: ToThread): void {
        this.thread.postMessage(message);
    }
}

/** Writes as much of a text as the pipe takes now. Returns the rest. */
function writeNow(pipe: number, text: string): Uint8Array {
    const bytes = Buffer.from(text);
    let written = bytes.length;
    try {
        written = writeSync(pipe, bytes);
    } catch (error) {
        // If nobody reads, the worker is dead, and the input has ended, too.
        written = (error as NodeJS.ErrnoException).code === "EAGAIN" ? 0 : written;
    }
    return new Uint8Array(bytes.subarray(written));
}
