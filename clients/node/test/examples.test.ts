/** Runs examples/node: customers order and pay over HTTP, while the worker and its Node process are killed. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join, resolve } from "node:path";
import { type TestContext, test } from "node:test";
import { promisify } from "node:util";
import type { Redis } from "ioredis";
import { CLIENTS, kill, Process, Server, seriatim, until } from "./support.js";

const run = promisify(execFile);
const EXAMPLE = resolve(CLIENTS, "..", "examples", "node");
const CUSTOMERS = ["ada", "ben", "cleo", "dan", "eva"];
const ORDERS = 6;
/** The cents with which the provider's library kills the process. */
const POISON = 2_000_000_000;

/** The service and the worker of the example, on a Redis. */
class Example {
    worker: Process;

    private constructor(
        private readonly t: TestContext,
        readonly redis: Redis,
        private readonly env: NodeJS.ProcessEnv,
        private readonly address: string,
    ) {
        this.worker = this.startWorker();
    }

    static async start(t: TestContext): Promise<Example> {
        const server = await Server.start(t);
        const env = { ...process.env, REDIS_URL: server.url, SERIATIM_REDIS: server.url, PORT: "0" };
        const service = new Process(t, process.execPath, ["service.js"], { cwd: EXAMPLE, env });
        const address = await until(
            () => /^(http:\S+)\n/m.exec(service.stdout)?.[1],
            () => `the service listens: ${service.stderr}`,
        );
        return new Example(t, server.client(t), env, address);
    }

    startWorker(): Process {
        const sink = `exec:'${process.execPath}' worker.js`;
        const args = ["worker", "--name", "orders-a", "--sink", sink, "--event-log"];
        this.worker = new Process(this.t, seriatim(), args, { cwd: EXAMPLE, env: this.env });
        return this.worker;
    }

    /** Returns the pid of the Node process that the worker has started. */
    async handlers(): Promise<number> {
        const find = () =>
            run("ps", ["-o", "pid=", "--ppid", String(this.worker.child.pid)]).catch(() => undefined);
        return Number((await until(find, "the handlers run")).stdout);
    }

    async stop(): Promise<void> {
        this.worker.child.kill("SIGTERM");
        assert.deepEqual(await this.worker.ended, { code: 0, signal: null }, this.worker.stderr);
    }

    async post(path: string, body: object = {}): Promise<Response> {
        const headers = { "Content-Type": "application/json" };
        return await fetch(this.address + path, { method: "POST", headers, body: JSON.stringify(body) });
    }

    async order(customer: string, cents: number, remindAfter = 3_600_000): Promise<string> {
        const answer = await this.post(`/orders/${customer}`, { cents, remindAfter });
        assert.equal(answer.status, 201);
        return ((await answer.json()) as { order: string }).order;
    }

    async pay(customer: string, number: string): Promise<void> {
        // A payment that is sent twice counts once.
        for (let time = 0; time < 2; time += 1) {
            assert.equal((await this.post(`/orders/${customer}/${number}/payment`)).status, 202);
        }
    }

    /** The rows of the event log by object: status, type or subject of the mail, and order. */
    async rows(): Promise<Record<string, [string, string, string][]>> {
        const found: Record<string, [string, string, string][]> = {};
        for (const [, fields] of await this.redis.xrange("event.log", "-", "+")) {
            const at = (name: string) => fields[fields.indexOf(name) + 1] as string;
            const event = JSON.parse(at("event"));
            found[at("object")] ??= [];
            found[at("object")]?.push([at("status"), event.about ?? event.type, event.order]);
        }
        return found;
    }

    /** Whether an account has an event that the worker has not committed. */
    private async isUnlogged(): Promise<boolean> {
        const rows = await this.redis.xrange("event.log", "-", "+");
        const logged = new Set(rows.map(([, fields]) => fields[fields.indexOf("id") + 1]));
        const accounts = await this.redis.keys("account:*");
        const counted = await Promise.all(accounts.map((account) => this.redis.hget(account, "event")));
        return counted.some((id) => !logged.has(id ?? ""));
    }

    /** Kills the worker when a handler has done its work, and the worker has not committed it. */
    async killWorkerBeforeCommit(): Promise<void> {
        const { child } = this.worker;
        const isCaught = async () => {
            child.kill("SIGSTOP");
            for (let look = 0; look < 10; look += 1) {
                if (await this.isUnlogged()) {
                    return true;
                }
            }
            child.kill("SIGCONT");
            return false;
        };
        await until(isCaught, "a handler has done its work before the commit", 60_000);
        await kill(child);
    }

    /** Waits until so many events are over. */
    async over(count: number): Promise<void> {
        const isOver = async () => (await this.redis.xlen("event.log")) >= count;
        await until(isOver, () => `${count} events are over: ${this.worker.stderr}`, 60_000);
    }

    async schedules(): Promise<string> {
        return (await run(seriatim(), ["schedule", "list", "--json"], { env: this.env })).stdout;
    }
}

/** The rows of these types and orders. */
const completed = (events: readonly (readonly [string, string])[]) =>
    events.map(([about, number]) => ["completed", about, number]);

test("no kill loses, repeats or reorders an effect", async (t) => {
    const example = await Example.start(t);
    const total = CUSTOMERS.length * ORDERS * 4; // ordered, paid, and a mail for each
    const buying = Promise.all(
        CUSTOMERS.map(async (customer) => {
            const numbers: string[] = [];
            for (let cents = 1; cents <= ORDERS; cents += 1) {
                const number = await example.order(customer, cents);
                await example.pay(customer, number);
                numbers.push(number);
            }
            return numbers;
        }),
    );
    for (const sixths of [1, 2, 3, 4]) {
        await example.over((total * sixths) / 6);
        assert.ok((await example.redis.xlen("event.log")) < total, "the kill comes in the middle");
        if (sixths % 2 === 0) {
            await example.killWorkerBeforeCommit();
            example.startWorker();
        } else {
            process.kill(await example.handlers(), "SIGKILL");
        }
    }
    const bought = await buying;
    await example.over(total);
    const rows = await example.rows();
    for (const [at, customer] of CUSTOMERS.entries()) {
        const wanted = completed(
            (bought[at] ?? []).flatMap(
                (number) =>
                    [
                        ["ordered", number],
                        ["paid", number],
                    ] as const,
            ),
        );
        assert.equal(wanted.length, 2 * ORDERS);
        assert.deepEqual(rows[`customer:${customer}`], wanted);
        assert.deepEqual(rows[`mail:${customer}`], wanted);
        assert.equal(await example.redis.hget(`account:customer:${customer}`, "owed"), "0");
    }
    assert.equal(await example.redis.xlen("event.log"), total);
    const charges = bought.flatMap((numbers) => numbers.map((number, at) => [number, String(at + 1)]));
    assert.deepEqual({ ...(await example.redis.hgetall("provider:charges")) }, Object.fromEntries(charges));
    const tries = (await example.redis.hvals("provider:tries")).map(Number);
    assert.ok(Math.min(...tries) >= 2, "the provider was busy at the first try of each payment");
    assert.equal(await example.schedules(), "", "no reminder of a paid order can come");
    await example.stop();
});

test("a reminder comes only without a payment", async (t) => {
    const example = await Example.start(t);
    const paid = await example.order("ada", 5);
    await example.pay("ada", paid);
    await example.over(4);
    assert.equal(await example.schedules(), "", "no reminder of a paid order is left");
    const unpaid = await example.order("ada", 7, 50);
    const wanted = [
        ["ordered", paid],
        ["paid", paid],
        ["ordered", unpaid],
        ["remind", unpaid],
    ] as const;
    await example.over(2 * wanted.length);
    const rows = completed(wanted);
    assert.deepEqual(await example.rows(), { "customer:ada": rows, "mail:ada": rows });
    assert.equal(await example.redis.hget("account:customer:ada", "owed"), "7");
    assert.equal((await example.post("/orders/ada/unknown/payment")).status, 404);
    await example.stop();
});

test("poison stops only its customer", async (t) => {
    const example = await Example.start(t);
    await example.pay("mallory", await example.order("mallory", POISON));
    const isHeld = async () =>
        (await example.redis.get("customer:mallory:events.held.id"))?.includes("crashes: died 5 times");
    await until(isHeld, () => `the customer waits for an operator: ${example.worker.stderr}`, 60_000);
    const number = await example.order("ada", 3);
    await example.pay("ada", number);
    await until(async () => (await example.rows())["mail:ada"]?.length === 2, "another customer goes on");
    const rows = await example.rows();
    assert.deepEqual(
        rows["customer:ada"],
        completed([
            ["ordered", number],
            ["paid", number],
        ]),
    );
    assert.deepEqual(
        rows["customer:mallory"]?.map(([, about]) => about),
        ["ordered"],
    );
    await example.stop();
});

test("the files of the example are short", async () => {
    const { stdout } = await run("wc", [
        "-l",
        ...["service.js", "worker.js", "provider.js"].map((file) => join(EXAMPLE, file)),
    ]);
    for (const row of stdout.trim().split("\n").slice(0, 3)) {
        assert.ok(Number.parseInt(row, 10) <= 40, row);
    }
});
