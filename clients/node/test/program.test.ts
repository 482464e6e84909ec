/** Tests of programs that are missing or do not fit, and of wrong settings. */
import assert from "node:assert/strict";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { ProgramMissing, Worker, WorkerEnded, type WorkerOptions } from "seriatim";
import { folder, pidOf, Server, seriatim } from "./support.js";

const quiet = () => undefined;

/** A program in place of `seriatim`. */
function fake(t: TestContext, text: string): string {
    const file = join(folder(t), "seriatim");
    writeFileSync(file, `#!/bin/sh\n${text}\n`);
    chmodSync(file, 0o755);
    return file;
}

async function failure(program: string | undefined, env?: NodeJS.ProcessEnv): Promise<Error> {
    const before = { ...process.env };
    Object.assign(process.env, env);
    try {
        const worker = new Worker("redis://127.0.0.1:1", { program, log: quiet });
        worker.on("t", quiet);
        await worker.run();
    } catch (error) {
        return error as Error;
    } finally {
        for (const name of Object.keys(env ?? {})) {
            delete process.env[name];
        }
        Object.assign(process.env, before);
    }
    return assert.fail("run has not failed");
}

test("a missing program is refused by name, with what to do", async () => {
    const named = await failure("/nowhere/seriatim");
    assert.ok(named instanceof ProgramMissing);
    assert.match(
        named.message,
        /^the option program names \/nowhere\/seriatim, which is no program that can be started; install/,
    );
    const variable = await failure(undefined, { SERIATIM_BIN: "/nowhere/else" });
    assert.match(variable.message, /^SERIATIM_BIN names \/nowhere\/else, which is no program/);
    const none = await failure(undefined, { SERIATIM_BIN: "", PATH: "/nowhere" });
    assert.match(
        none.message,
        /^there is no program seriatim: SERIATIM_BIN is not set, the package @seriatim\/\w+-\w+ is not installed, and no folder of PATH has it; install/,
    );
});

test("a program that does not fit is refused by name, with what to do", async (t) => {
    const old = fake(t, "echo 'error: invalid value stdio' >&2; exit 2");
    const tooOld = await failure(old);
    assert.ok(tooOld instanceof WorkerEnded && tooOld.exitCode === 2);
    assert.match(tooOld.message, /^\S+seriatim has refused its options: invalid value stdio$/);
    const silent = await failure(fake(t, "exit 2"));
    assert.match(silent.message, /has refused its options: an option is wrong; its message is above$/);
    const early = await failure(fake(t, "kill -9 $$"));
    assert.match(
        early.message,
        /seriatim was killed by signal 9 \(e\.g\. out of memory, or an operator\); it was not ready before/,
    );
    const two = await failure(fake(t, `echo '{"type":"hello","protocol":2}'; cat >/dev/null`));
    assert.match(
        two.message,
        /seriatim cannot be used: the worker speaks version 2 of the protocol, and this package speaks version 1/,
    );
    const stray = await failure(fake(t, "echo hello; cat >/dev/null"));
    assert.match(stray.message, /the line "hello" of the worker is not of the protocol: it is no JSON/);
    const redis = await failure(fake(t, `echo '{"type":"hello","protocol":1}'; exit 3`));
    assert.match(
        redis.message,
        /exit code 3 \(Redis cannot be reached, or refuses\); its handlers were cancelled/,
    );
});

test("a setting that the program refuses is an error with the reason of the program", async () => {
    const of = (options: WorkerOptions) => {
        const worker = new Worker("redis://127.0.0.1:1", { program: seriatim(), log: quiet, ...options });
        return worker.on("t", quiet).run();
    };
    await assert.rejects(of({ retry: "fixed-5x" }), (error: WorkerEnded) => {
        assert.ok(error instanceof WorkerEnded && error.exitCode === 2);
        assert.match(
            error.message,
            /has refused its options: invalid value 'fixed-5x' for '--retry <POLICY>': /,
        );
        assert.doesNotMatch(error.message, /first line|update it/);
        return true;
    });
    await assert.rejects(
        of({ batch: 100_000_000 }),
        /has refused its options: --batch is 100000000; it must be/,
    );
});

test("a name in use is an error with the exit code", async (t) => {
    const server = await Server.start(t);
    const options = { name: "same", program: seriatim(), args: ["--log", "error"], log: quiet };
    const first = new Worker(server.url, options);
    first.on("t", quiet);
    const running = first.run();
    const redis = server.client(t);
    await pidOf(redis, "same");
    const second = new Worker(server.url, options);
    second.on("t", quiet);
    await assert.rejects(second.run(), (error: WorkerEnded) => {
        assert.ok(error instanceof WorkerEnded);
        assert.equal(error.exitCode, 4, error.message);
        return true;
    });
    first.stop();
    await running;
    await assert.rejects(first.run(), /a worker runs once/);
});

/** Story: a user called the internal `check`, which failed inside. */
test("a worker has no methods but the documented ones", () => {
    const methods = Object.getOwnPropertyNames(Worker.prototype).filter((name) => name !== "constructor");
    assert.deepEqual(methods, ["on", "onOther", "run", "serve", "stop", "stopAtOnce"]);
});

test("wrong settings of a worker are refused", () => {
    assert.throws(() => new Worker("x", { concurrency: 0 }), /concurrency is 0; it is 1 to 1024/);
    assert.throws(() => new Worker("x", { processes: 65 }), /processes is 65; it is 1 to 64/);
    assert.throws(() => new Worker("x", { namespace: "" }), /namespace "" is invalid/);
    assert.throws(() => new Worker({} as string), /the URL of Redis as a text/);
    const worker = new Worker();
    worker.on("t", quiet).onOther(quiet);
    assert.throws(() => worker.on("t", quiet), /the type "t" has a handler already/);
    assert.throws(() => worker.onOther(quiet), /a handler of other events already/);
    assert.throws(() => worker.on("u", "no" as never), /a type and a function/);
});
