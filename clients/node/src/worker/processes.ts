/**
 * Several processes for several cores. The parent starts its own program anew for each of them. Each process has a
 * worker of its own, and ends with its parent.
 */
import { type ChildProcess, fork } from "node:child_process";
import type { Log } from "./log.js";

/** The variable with the number of a process. */
const NUMBER = "SERIATIM_NODE_PROCESS";
/** The wait before a process is started again, in ms: the first, and the longest. */
const AGAIN_MS = [100, 30_000] as const;

export type StopKind = "graceful" | "at once";

type FromParent = { readonly seriatim: "stop"; readonly how: StopKind };
type FromChild = { readonly seriatim: "ready" };

/** This process as the child of another one. */
export interface ChildSide {
    readonly number: number;
    /** Tells the parent that the worker runs. */
    ready(): void;
    /** Calls back when the parent stops this process, or is dead. */
    onStop(stop: (how: StopKind) => void): void;
}

let side: ChildSide | undefined;

/** Returns the link to the parent; none if this process was not started by `Processes`. */
export function processNumber(): ChildSide | undefined {
    const number = process.env[NUMBER];
    // Programs that a handler starts are no processes of this worker.
    delete process.env[NUMBER];
    if (number !== undefined && process.send !== undefined) {
        side = {
            number: Number(number),
            ready: () => process.send?.({ seriatim: "ready" } satisfies FromChild),
            onStop: (stop) => {
                process.on("message", (message: FromParent) => {
                    if (message?.seriatim === "stop") {
                        stop(message.how);
                    }
                });
                process.on("disconnect", () => stop("at once"));
                // The link does not keep a process alive whose worker has ended.
                process.channel?.unref();
            },
        };
    }
    return side;
}

/** A process that does not run: it has ended without a stop, before its worker ran. */
export class ProcessEnded extends Error {
    override readonly name = "ProcessEnded";
}

export class Processes {
    private readonly children = new Map<number, ChildProcess>();
    private stopping: StopKind | undefined;
    private readonly pauses = new Set<() => void>();
    private failed: Error | undefined;

    constructor(
        private readonly count: number,
        private readonly log: Log,
    ) {}

    /** Runs the processes until all have ended after a stop. */
    async run(): Promise<void> {
        await Promise.all(Array.from({ length: this.count }, (_, number) => this.keep(number)));
        if (this.failed !== undefined) {
            throw this.failed;
        }
    }

    stop(how: StopKind): void {
        this.stopping = how;
        for (const wake of this.pauses) {
            wake();
        }
        for (const child of this.children.values()) {
            send(child, how);
        }
    }

    /** Keeps one process running until the stop. */
    private async keep(number: number): Promise<void> {
        let againMs: number = AGAIN_MS[0];
        while (this.stopping === undefined) {
            const began = performance.now();
            const { wasReady, how } = await this.once(number);
            if (this.stopping !== undefined) {
                if (how !== "with exit code 0") {
                    this.log("warn", `the process ${number} ended ${how} during the stop`);
                }
                return;
            }
            if (!wasReady) {
                // The next start would fail in the same way.
                this.failed ??= new ProcessEnded(
                    `the process ${number} ended ${how} before its worker ran; its message is above`,
                );
                this.stop("graceful");
                return;
            }
            // A process that has run for long has not failed at its start.
            againMs = performance.now() - began > AGAIN_MS[1] ? AGAIN_MS[0] : againMs;
            this.log("warn", `the process ${number} ended ${how}; it starts again in ${againMs} ms`);
            await this.pause(againMs);
            againMs = Math.min(againMs * 2, AGAIN_MS[1]);
        }
    }

    private async once(number: number): Promise<{ wasReady: boolean; how: string }> {
        const [, program, ...args] = process.argv;
        if (program === undefined) {
            throw new TypeError("several processes need a program in a file, which each of them runs");
        }
        const child = fork(program, args, { env: { ...process.env, [NUMBER]: String(number) } });
        this.children.set(number, child);
        let wasReady = false;
        child.on("message", (message: FromChild) => {
            if (message?.seriatim === "ready") {
                wasReady = true;
                if (this.stopping !== undefined) {
                    send(child, this.stopping);
                }
            }
        });
        const how = await new Promise<string>((resolve) => {
            child.on("error", (error) => resolve(`by an error: ${error.message}`));
            child.on("exit", (code, signal) =>
                resolve(signal === null ? `with exit code ${code}` : `by ${signal}`),
            );
        });
        this.children.delete(number);
        return { wasReady, how };
    }

    private async pause(ms: number): Promise<void> {
        let timer: NodeJS.Timeout | undefined;
        let wake: () => void = () => undefined;
        await new Promise<void>((resolve) => {
            wake = resolve;
            this.pauses.add(wake);
            timer = setTimeout(resolve, ms);
        });
        this.pauses.delete(wake);
        clearTimeout(timer);
    }
}

function send(child: ChildProcess, how: StopKind): void {
    if (child.connected) {
        child.send({ seriatim: "stop", how } satisfies FromParent, () => undefined);
    }
}
