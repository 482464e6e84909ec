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

test("the example of a test and that of reports run", async () => {
    const files = await compile("readme-run", blocks);
    const at = blocks.findIndex((text) => text.includes("node:test"));
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const { stdout } = await run(process.execPath, ["--test", files[at] ?? ""], { env });
    assert.match(stdout, /# pass 1\n/);
    const reports = blocks.findIndex((text) => text.includes("cx.progress"));
    const shown = /console\.log\(.*\/\/ (.*)/.exec(blocks[reports] ?? "")?.[1];
    const ran = await run(process.execPath, [files[reports] ?? ""], { env });
    assert.equal(ran.stdout, `${shown}\n`);
});

test("the README has at most 235 lines", () => {
    assert.ok(readme.split("\n").length <= 236);
});
