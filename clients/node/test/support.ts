/** Support of the tests: private servers, proxies, and processes. All of them end with their test. */
import assert from "node:assert/strict";
import {
    type ChildProcess,
    type ChildProcessWithoutNullStreams,
    execFileSync,
    type SpawnOptions,
    spawn,
} from "node:child_process";
import { once } from "node:events";
import { createReadStream, createWriteStream, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createConnection, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type { Readable, Writable } from "node:stream";
import type { TestContext } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Redis } from "ioredis";

/** The folder of the package. */
export const PACKAGE = fileURLToPath(new URL("../", import.meta.url));
/** The folder of all packages. */
export const CLIENTS = resolve(PACKAGE, "..");

/** Waits for a state. A state that does not come fails the test. */
export async function until<T>(
    state: () => T | undefined | false | Promise<T | undefined | false>,
    what: string | (() => string),
    ms = 20_000,
): Promise<T> {
    const end = Date.now() + ms;
    for (;;) {
        const value = await state();
        if (value !== undefined && value !== false) {
            return value;
        }
        assert.ok(Date.now() < end, `did not come: ${typeof what === "string" ? what : what()}`);
        await new Promise((resolve) => setTimeout(resolve, 10));
    }
}

/** A folder that is removed after the test. */
export function folder(t: TestContext): string {
    const path = mkdtempSync(join(tmpdir(), "seriatim-node-"));
    t.after(() => rmSync(path, { recursive: true, force: true }));
    return path;
}

/** Ends a process, and waits for its end. */
export async function kill(child: ChildProcess, signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    if (child.exitCode === null && child.signalCode === null) {
        const exit = once(child, "exit");
        child.kill(signal);
        await exit;
    }
}

/** A private Redis on a socket. */
export class Server {
    private child: ChildProcess | undefined;
    readonly url: string;

    private constructor(
        readonly path: string,
        private readonly dir: string,
        private readonly args: readonly string[],
    ) {
        this.url = `unix://${path}`;
    }

    static async start(t: TestContext, ...args: string[]): Promise<Server> {
        const dir = folder(t);
        const server = new Server(join(dir, "redis.sock"), dir, args);
        t.after(() => server.kill());
        await server.restart();
        return server;
    }

    /** Starts the server again, after a `kill`. */
    async restart(): Promise<void> {
        const args = [
            "--port",
            "0",
            "--unixsocket",
            this.path,
            "--save",
            "",
            "--dir",
            this.dir,
            ...this.args,
        ];
        const server = process.env.SERIATIM_REDIS_SERVER || "redis-server";
        const child = spawn(server, args, { stdio: "ignore" });
        const failed = once(child, "error").then(([error]) => {
            throw new Error(`the tests need redis-server on PATH: ${error}`);
        });
        this.child = child;
        const answers = () =>
            new Promise<boolean>((resolve) => {
                const socket = createConnection(this.path, () => {
                    socket.destroy();
                    resolve(true);
                });
                socket.on("error", () => resolve(false));
            });
        await Promise.race([failed, until(answers, "redis-server accepts connections")]);
    }

    async kill(): Promise<void> {
        if (this.child !== undefined) {
            await kill(this.child);
        }
    }

    /** Sends a signal to the process. */
    signal(signal: NodeJS.Signals): void {
        this.child?.kill(signal);
    }

    /** A client, which is closed after the test. */
    client(t: TestContext, options: object = {}): Redis {
        const client = new Redis(this.url, { maxRetriesPerRequest: 1, ...options });
        client.on("error", () => undefined);
        t.after(() => client.disconnect());
        return client;
    }
}

/** A proxy before a server, which can hold back or cut what passes. */
export class Relay {
    readonly url: string;
    private readonly pairs = new Set<{ client: Socket; server: Socket }>();
    private passes = true;
    private readonly held: (() => void)[] = [];
    /** The number of connections so far. */
    connections = 0;

    private constructor(
        private readonly path: string,
        private readonly to: string,
    ) {
        this.url = `unix://${path}`;
    }

    static async start(t: TestContext, server: Server): Promise<Relay> {
        const proxy = new Relay(join(folder(t), "proxy.sock"), server.path);
        const listener = createServer((client) => proxy.connect(client));
        listener.listen(proxy.path);
        await once(listener, "listening");
        t.after(() => {
            proxy.cut();
            listener.close();
        });
        return proxy;
    }

    /** Whether replies pass. Otherwise they are held back until this is set again. Requests always pass. */
    set passesReplies(passes: boolean) {
        this.passes = passes;
        if (passes) {
            this.held.splice(0).forEach((pass) => {
                pass();
            });
        }
    }

    get passesReplies(): boolean {
        return this.passes;
    }

    /** The number of open connections. */
    get open(): number {
        return this.pairs.size;
    }

    /** Cuts all connections. */
    cut(): void {
        for (const { client, server } of this.pairs) {
            client.destroy();
            server.destroy();
        }
        this.pairs.clear();
        this.held.length = 0;
    }

    private connect(client: Socket): void {
        this.connections += 1;
        const server = createConnection(this.to);
        const pair = { client, server };
        this.pairs.add(pair);
        client.on("data", (bytes) => server.write(bytes));
        server.on("data", (bytes) => {
            const pass = () => client.write(bytes);
            if (this.passes) {
                pass();
            } else {
                this.held.push(pass);
            }
        });
        for (const [one, other] of [
            [client, server],
            [server, client],
        ] as const) {
            one.on("error", () => undefined);
            one.on("close", () => {
                other.destroy();
                this.pairs.delete(pair);
            });
        }
    }
}

/** The program `seriatim`. Without it, a test fails. */
export function seriatim(): string {
    const path = process.env.SERIATIM_BIN ?? resolve(CLIENTS, "..", "target", "debug", "seriatim");
    assert.ok(
        existsSync(path),
        `the tests need the program seriatim: set SERIATIM_BIN (there is none at ${path})`,
    );
    return path;
}

type ProcessOptions = SpawnOptions & { pipes?: boolean };

/** A process of a test, with what it has written so far. */
export class Process {
    readonly child: ChildProcessWithoutNullStreams;
    stdout = "";
    stderr = "";
    readonly ended: Promise<{ code: number | null; signal: string | null }>;

    /** The standard input of the process, and its standard output, which a test may pause. */
    readonly stdin: Writable;
    readonly output: Readable;

    /** `pipes`: standard input and output are pipes, as a worker makes them. Otherwise they are sockets. */
    constructor(t: TestContext, command: string, args: readonly string[], options: ProcessOptions = {}) {
        const { pipes = false, ...rest } = options;
        let [stdout, stderr]: [Readable | undefined, Readable | undefined] = [undefined, undefined];
        if (pipes) {
            const dir = folder(t);
            const [input, output, error] = [join(dir, "in"), join(dir, "out"), join(dir, "err")];
            execFileSync("mkfifo", [input, output, error]);
            const text = `input=$1 output=$2 error=$3; shift 3; exec "$@" <"$input" >"$output" 2>"$error"`;
            const words = ["-c", text, "sh", input, output, error, command, ...args];
            this.child = spawn("sh", words, { ...rest, stdio: "pipe" });
            this.stdin = createWriteStream(input);
            stdout = createReadStream(output);
            stderr = createReadStream(error);
        } else {
            this.child = spawn(command, args, { ...rest, stdio: "pipe" });
            this.stdin = this.child.stdin;
        }
        stdout ??= this.child.stdout;
        stderr ??= this.child.stderr;
        this.stdin.on("error", () => undefined);
        this.output = stdout;
        stdout.setEncoding("utf8").on("data", (text: string) => {
            this.stdout += text;
        });
        stderr.setEncoding("utf8").on("data", (text: string) => {
            this.stderr += text;
        });
        const closed = once(stderr, "close");
        this.ended = new Promise((resolve) => {
            this.child.on("close", (code, signal) => closed.then(() => resolve({ code, signal })));
        });
        t.after(() => kill(this.child));
    }

    /** Writes a line. */
    send(line: object): void {
        this.stdin.write(`${JSON.stringify(line)}\n`);
    }

    /** The lines on standard output so far. */
    get lines(): string[] {
        return this.stdout.split("\n").slice(0, -1);
    }

    /** The lines on standard output, which are JSON. */
    // biome-ignore lint/suspicious/noExplicitAny: tests look at members of lines.
    get answers(): any[] {
        return this.lines.map((line) => JSON.parse(line));
    }

    async saw(text: string): Promise<void> {
        const both = () => `${this.stdout}\n---\n${this.stderr}`;
        await until(
            () => both().includes(text),
            () => `${JSON.stringify(text)} in\n${both()}`,
        );
    }
}

/** Starts a program of JavaScript, whose text may use everything that the package exports. */
export function script(
    t: TestContext,
    text: string,
    options: ProcessOptions & { args?: string[] } = {},
): Process {
    const file = join(folder(t), "program.mjs");
    const index = pathToFileURL(join(PACKAGE, "dist", "index.js")).href;
    writeFileSync(
        file,
        `import * as seriatim from ${JSON.stringify(index)};\n` +
            "const { Emitter, Worker, Transient, Rejected, Unknown, Unavailable, Postponed, RawJson } = seriatim;\n" +
            text,
    );
    return new Process(t, process.execPath, [file, ...(options.args ?? [])], options);
}

/** The process id in the lease of a worker. */
export async function pidOf(redis: Redis, name: string): Promise<number> {
    const lease = await until(
        () => redis.get(`event.worker:${name}:lease`).then((lease) => lease ?? undefined),
        "a lease",
    );
    return Number(lease.split(" ")[2]);
}
