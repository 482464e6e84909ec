/** Tests that each example of the README compiles, and runs those that need nothing else. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { blocksOf, compile } from "./pages.js";
import { PACKAGE } from "./support.js";

const run = promisify(execFile);
const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");
const blocks = blocksOf(join(PACKAGE, "README.md"));

test("each example of the README compiles", async () => {
    assert.ok(blocks.length >= 8, `${blocks.length} examples`);
    const fences = readme.match(/^```\w+$/gm) ?? [];
    assert.deepEqual(
        [...new Set(fences)],
        ["```ts"],
        "each block of code has a language that this test knows",
    );
    await compile("readme", blocks);
});

test("the example of a test runs", async () => {
    const files = await compile("readme-run", blocks);
    const at = blocks.findIndex((text) => text.includes("seriatim/testing"));
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const { stdout } = await run(process.execPath, ["--test", files[at] ?? ""], { env });
    assert.match(stdout, /# pass 1\n/);
});

test("the README has at most 220 lines", () => {
    assert.ok(readme.split("\n").length <= 221);
});
