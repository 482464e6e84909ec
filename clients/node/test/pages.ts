/** The blocks in TypeScript of pages, which tests compile and run. */
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { PACKAGE } from "./support.js";

/** Returns the blocks of a page that say nothing behind their language, such as `not run: …`. */
export function blocksOf(path: string): string[] {
    const page = readFileSync(path, "utf8");
    return [...page.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map(([, text = ""]) => text);
}

/**
 * Compiles blocks in a folder inside of the package, so that they find it by its name. Returns the files in
 * JavaScript. The error of a block that does not compile has the messages of the compiler.
 */
export async function compile(name: string, blocks: readonly string[]): Promise<string[]> {
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
    await promisify(execFile)("npx", ["tsc", "-p", dir], { cwd: PACKAGE }).catch(
        (error: { stdout: string }) => {
            throw new Error(error.stdout);
        },
    );
    return blocks.map((_, at) => join(dir, `example${at}.js`));
}
