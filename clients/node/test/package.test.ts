/** Tests of the package as it is published. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { CLIENTS, PACKAGE, seriatim } from "./support.js";

const run = promisify(execFile);

test("the scripts are those of all packages", () => {
    for (const file of ["emit.lua", "cancel.lua"]) {
        const [mine, shared] = [join(PACKAGE, "scripts", file), join(CLIENTS, "scripts", file)].map((path) =>
            readFileSync(path, "utf8"),
        );
        assert.equal(mine, shared, `copy clients/scripts/${file} into clients/node/scripts`);
    }
    assert.deepEqual(
        readdirSync(join(PACKAGE, "scripts")).sort(),
        readdirSync(join(CLIENTS, "scripts")).sort(),
    );
});

test("the package has all of its files, and no others", async () => {
    const { stdout } = await run("npm", ["pack", "--dry-run", "--json"], { cwd: PACKAGE });
    const files: string[] = JSON.parse(stdout)[0].files.map(({ path }: { path: string }) => path);
    for (const file of [
        "README.md",
        "bin/seriatim.js",
        "dist/index.js",
        "dist/index.d.ts",
        "dist/testing/index.js",
        "dist/worker/pipes-thread.js",
        "scripts/emit.lua",
        "scripts/cancel.lua",
    ]) {
        assert.ok(files.includes(file), file);
    }
    assert.deepEqual(
        files.filter(
            (file) =>
                !/^(bin\/seriatim\.js|dist\/.*\.(js|d\.ts)|scripts\/.*\.lua|README\.md|package\.json)$/.test(
                    file,
                ),
        ),
        [],
    );
});

test("the lock file names no other registry", () => {
    const lock: { packages: Record<string, { resolved?: string }> } = JSON.parse(
        readFileSync(join(PACKAGE, "package-lock.json"), "utf8"),
    );
    const resolved = Object.values(lock.packages).flatMap(({ resolved }) => resolved ?? []);
    assert.deepEqual(
        resolved.filter((address) => !address.startsWith("https://registry.npmjs.org/")),
        [],
    );
    const { dependencies = {} } = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8"));
    assert.deepEqual(dependencies, {}, "the package has no dependency but its peer");
});

test("the program knows each option that the package gives it", async () => {
    const { stdout } = await run(seriatim(), ["worker", "--help"]);
    const source = readFileSync(join(PACKAGE, "dist", "worker", "worker.js"), "utf8");
    const options = [...new Set(source.match(/"--[a-z-]+"/g))].map((option) => option.slice(1, -1));
    assert.ok(options.length >= 10);
    for (const option of options) {
        assert.ok(stdout.includes(option), option);
    }
});
