/** The blocks in TypeScript of the top README and of the pages for users run, as a reader copies them. */
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { blocksOf, compile } from "./pages.js";
import { CLIENTS, Process, Server, seriatim, until } from "./support.js";

const ROOT = resolve(CLIENTS, "..");

/** Each page, with a line that its handlers print. */
const PAGES: Record<string, RegExp> = {
    "README.md": /^customer:1 \d+ 1200$/m,
    "docs/guide.md": /^customer:17 \d+ 1 paid$/m,
    "docs/coming-from.md": /^1200$/m,
    "docs/unordered.md": /^mail:[0-9a-f-]{36} ada$/m,
};

test("no other page has TypeScript", () => {
    for (const file of readdirSync(join(ROOT, "docs")).filter((file) => file.endsWith(".md"))) {
        assert.ok(`docs/${file}` in PAGES || blocksOf(join(ROOT, "docs", file)).length === 0, file);
    }
});

for (const [page, line] of Object.entries(PAGES)) {
    test(`the blocks of ${page} run`, async (t) => {
        const server = await Server.start(t);
        const blocks = blocksOf(join(ROOT, page));
        const files = await compile(
            `page-${page.replace(/\W/g, "-")}`,
            blocks.map((text) => text.replaceAll("redis://127.0.0.1", server.url)),
        );
        const env = { ...process.env, SERIATIM_BIN: seriatim() };
        let workers = 0;
        for (const [at, file] of files.entries()) {
            const program = new Process(t, process.execPath, [file], { env });
            if (blocks[at]?.includes("worker.run()")) {
                await until(
                    () => line.test(program.stdout),
                    () => `${line}: ${program.stdout} ${program.stderr}`,
                );
                program.child.kill("SIGTERM");
                workers += 1;
            }
            assert.deepEqual(await program.ended, { code: 0, signal: null }, program.stderr);
        }
        assert.equal(workers, 1);
    });
}
