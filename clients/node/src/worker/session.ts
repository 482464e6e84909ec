/** One worker and this program: the pipes, the lines, and the handlers in hand. */
import { readFileSync } from "node:fs";
import type { Keys } from "../names.js";
import { Engine } from "./engine.js";
import type { Handlers } from "./handlers.js";
import type { Log } from "./log.js";
import { Output } from "./output.js";
import { type Exit, Pipes, type PipesStart } from "./pipes.js";
import { LineReader, PROTOCOL, readLine } from "./protocol.js";

/** The time in ms for which cancelled handlers may go on. After that, the process ends. */
const ENDS_WITHIN_MS = 1000;
/** The time in ms for which the last answers may take to be written. */
const WRITTEN_WITHIN_MS = 1000;

const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
    version: string;
};

/** The parts of a worker that a session uses. */
export interface SessionSettings {
    readonly handlers: Handlers;
    readonly keys: Keys;
    readonly concurrency: number;
    readonly log: Log;
}

/** The end of a session. */
export interface SessionEnd {
    /** The end of the worker, if this program has started it. */
    readonly exit: Exit | undefined;
    /** The worker has written its first line. */
    readonly wasReady: boolean;
    /** The error that has ended the session, e.g. a line that breaks the protocol. */
    readonly error: Error | undefined;
    /** The number of batches in hand at the end. */
    readonly inHand: number;
}

export class Session {
    private readonly engine: Engine;
    private readonly output: Output;
    private readonly pipes: Pipes;
    private readonly lines = new LineReader();
    private readonly over: Promise<void>;
    private end: () => void = () => undefined;
    private isOver = false;
    private error: Error | undefined;
    private inHandAtEnd = 0;
    private saidBye = false;
    /** Whether the worker is to be stopped at once. */
    private stops = false;

    constructor(
        start: PipesStart,
        private readonly settings: SessionSettings,
        /** Called when the worker has written its first line. */
        private readonly ready: () => void = () => undefined,
    ) {
        const { handlers, keys, concurrency, log } = settings;
        this.over = new Promise((resolve) => {
            this.end = resolve;
        });
        this.output = new Output((text, written) => this.pipes.write(text, written));
        this.engine = new Engine(handlers, keys, this.output, log, (inHand) => this.pipes.setInHand(inHand));
        this.pipes = new Pipes(start, {
            chunk: (bytes) => this.read(bytes),
            end: () => this.ended("the worker has ended"),
        });
        const hello = { type: "hello", protocol: PROTOCOL, concurrency, client: `seriatim-node ${version}` };
        this.pipes.write(`${JSON.stringify(hello)}\n`);
    }

    /** Asks the worker for a graceful stop: it sends no further batch, and ends when those in hand are over. */
    bye(): void {
        if (!this.saidBye && !this.isOver) {
            this.saidBye = true;
            this.output.flush();
            this.pipes.write('{"type":"bye"}\n');
        }
    }

    /** Cancels all handlers, and stops the worker at once. */
    leave(why: string): void {
        this.stops = true;
        this.ended(why);
    }

    /** Awaits the end of the worker, and of the cancelled handlers. */
    async ends(isChild: boolean): Promise<SessionEnd> {
        await this.over;
        let timer: NodeJS.Timeout | undefined;
        const late = new Promise<"late">((resolve) => {
            timer = setTimeout(() => resolve("late"), ENDS_WITHIN_MS);
        });
        const idle = await Promise.race([this.engine.idle(), late]);
        clearTimeout(timer);
        if (idle === "late") {
            const text = this.engine.describe();
            this.settings.log(
                "error",
                `handlers go on after their cancel: ${text}; the process ends, because another worker may handle these events now`,
            );
            process.exit(1);
        }
        if (this.stops && isChild) {
            // All handlers have ended by now, so the worker may give their objects to other workers.
            this.pipes.stop();
        } else {
            await this.pipes.finish(WRITTEN_WITHIN_MS);
        }
        const exit = isChild ? await this.pipes.exit : undefined;
        await this.pipes.close();
        return { exit, wasReady: this.engine.isReady, error: this.error, inHand: this.inHandAtEnd };
    }

    private read(bytes: Uint8Array): void {
        if (this.isOver) {
            return;
        }
        try {
            for (const text of this.lines.lines(bytes)) {
                const wasReady = this.engine.isReady;
                const line = readLine(text);
                if (line !== undefined) {
                    this.engine.receive(line);
                }
                if (!wasReady && this.engine.isReady) {
                    this.ready();
                }
            }
        } catch (error) {
            this.error = error as Error;
            this.leave("the worker has broken the protocol");
        }
    }

    private ended(why: string): void {
        if (!this.isOver) {
            this.isOver = true;
            this.inHandAtEnd = this.engine.inHand;
            this.engine.die(why);
            this.end();
        }
    }
}
