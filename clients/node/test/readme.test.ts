/** Tests that each example of the README compiles, and runs those that need nothing else. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { PACKAGE } from "./support.js";

const run = promisify(execFile);
const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");
const blocks = [...readme.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map(([, text = ""]) => text);

/** Writes the examples into a folder inside of the package, so that they find it by its name. */
function write(name: string): string {
    const dir = join(PACKAGE, "build", name);
    rmSync(dir, { recursive: true, force: true });
    mkdirSync(dir, { recursive: true });
    blocks.forEach((text, at) => {
        writeFileSync(join(dir, `example${at}.ts`), `${text}\nexport {};\n`);
    });
    const options = {
        extends: "../../tsconfig.json",
        compilerOptions: { rootDir: ".", outDir: ".", declaration: false, skipLibCheck: false },
        include: ["."],
        exclude: [],
    };
    writeFileSync(join(dir, "tsconfig.json"), JSON.stringify(options));
    return dir;
}

test("each example of the README compiles", async () => {
    assert.ok(blocks.length >= 8, `${blocks.length} examples`);
    const fences = readme.match(/^```\w+$/gm) ?? [];
    assert.deepEqual(
        [...new Set(fences)],
        ["```ts"],
        "each block of code has a language that this test knows",
    );
    const dir = write("readme");
    const failed = await run("npx", ["tsc", "-p", dir], { cwd: PACKAGE }).catch(
        (error: { stdout: string }) => error,
    );
    assert.equal(failed.stdout, "");
});

test("the example of a test runs", async () => {
    const dir = write("readme-run");
    await run("npx", ["tsc", "-p", dir], { cwd: PACKAGE });
    const at = blocks.findIndex((text) => text.includes("seriatim/testing"));
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const { stdout } = await run(process.execPath, ["--test", join(dir, `example${at}.js`)], { env });
    assert.match(stdout, /# pass 1\n/);
});

test("the README has at most 220 lines", () => {
    assert.ok(readme.split("\n").length <= 221);
});
